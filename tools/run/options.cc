#include "run/options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace cleave::run {

const char kUsage[] = R"(usage: cleave-run [-n RANKS] [--threads T] [--no-prefix] [--] PROGRAM [ARGS...]

Starts RANKS copies of PROGRAM on this machine and waits for them.

  -n, --ranks RANKS  number of processes (default 1)
  --threads T        OMP_NUM_THREADS of each rank (default: the variable as it is,
                     or the machine's cores divided by RANKS)
  --no-prefix        pass output through as it is, without "[rank] " before each line
  -h, --help         this text

Sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, for rank 0,
CLEAVE_MASTER_LISTEN_FD: a socket that already listens on that port.

When a rank fails, the others are ended (SIGTERM, three seconds later SIGKILL) and its exit code,
or 128 + its signal, is returned. Ctrl-C and SIGTERM are passed on to all ranks (130, 143).
)";

namespace {

constexpr int kMaxRanks = 4096;

int parse_count(std::string_view option, std::string_view text, int max) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > max) {
    throw std::invalid_argument(std::string(option) + " needs a number from 1 to " + std::to_string(max) +
                                ", got '" + std::string(text) + "'");
  }
  return value;
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  Options options;
  int at = 1;
  const auto value = [&](std::string_view option) -> std::string_view {
    if (++at >= argc) throw std::invalid_argument(std::string(option) + " needs a value");
    return argv[at];
  };
  for (; at < argc && argv[at][0] == '-'; ++at) {
    const std::string_view option = argv[at];
    if (option == "--") {
      ++at;
      break;
    }
    if (option == "-n" || option == "--ranks") {
      options.ranks = parse_count(option, value(option), kMaxRanks);
    } else if (option == "--threads") {
      options.threads = parse_count(option, value(option), kMaxRanks);
    } else if (option == "--no-prefix") {
      options.prefix = false;
    } else if (option == "-h" || option == "--help") {
      options.help = true;
      return options;
    } else {
      throw std::invalid_argument("unknown option '" + std::string(option) + "'");
    }
  }
  options.command.assign(argv + at, argv + argc);
  if (options.command.empty()) throw std::invalid_argument("no program given");
  if (options.ranks == 1) options.prefix = false;
  return options;
}

std::string thread_count(const Options& options) {
  if (options.threads > 0) return std::to_string(options.threads);
  if (std::getenv("OMP_NUM_THREADS")) return "";
  return std::to_string(std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / options.ranks));
}

}  // namespace cleave::run
