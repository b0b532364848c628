#include "run/ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <utility>

namespace cleave::run {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

struct Fd {
  explicit Fd(int value = -1) : value(value) {}
  ~Fd() { reset(); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  void reset() {
    if (value >= 0) close(value);
    value = -1;
  }
  int release() { return std::exchange(value, -1); }
  int value;
};

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
    read.value = ends[0];
    write.value = ends[1];
  }
  Fd read, write;
};

// Listens before any rank exists, so that no other job can get the port.
int listen_on_free_port(int* port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.value < 0) fail("socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (bind(fd.value, generic, size) != 0) fail("bind to 127.0.0.1");
  if (listen(fd.value, SOMAXCONN) != 0) fail("listen on 127.0.0.1");
  if (getsockname(fd.value, generic, &size) != 0) fail("getsockname");
  *port = ntohs(address.sin_port);
  return fd.release();
}

void set_environment(const Options& options, int rank, int port, int listener) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  const std::string size = std::to_string(options.ranks);
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", size);
  set("LOCAL_WORLD_SIZE", size);
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  unsetenv("CLEAVE_MASTER_LISTEN_FD");
  if (rank == 0) set("CLEAVE_MASTER_LISTEN_FD", std::to_string(listener));
  if (const std::string threads = thread_count(options); !threads.empty()) set("OMP_NUM_THREADS", threads);
}

// A rank is not in the terminal's foreground group: reading from the terminal would stop it.
void connect_stdin(int rank) {
  if (rank == 0 && !isatty(STDIN_FILENO)) return;
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  close(null);
}

void reset_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

std::vector<char*> to_argv(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  return argv;
}

// Children of this process, its adopted orphans among them.
std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  std::ifstream file("/proc/self/task/" + std::to_string(getpid()) + "/children");
  for (pid_t pid; file >> pid;) pids.push_back(pid);
  return pids;
}

}  // namespace

bool RankExit::signalled() const { return WIFSIGNALED(status); }

int RankExit::code() const { return signalled() ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string RankExit::str() const {
  const std::string who = "rank " + std::to_string(rank);
  if (!signalled()) return who + " exited with code " + std::to_string(code());
  const int number = WTERMSIG(status);
  const char* name = sigabbrev_np(number);
  return who + " was killed by " + (name ? "SIG" + std::string(name) : "signal " + std::to_string(number));
}

struct Ranks::Launch {
  const Options& options;
  pid_t parent;
  int port;
  int listener;
};

Ranks::Ranks(const Options& options) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  int port = 0;
  guard_ = start_guard();
  try {
    const Fd listener(listen_on_free_port(&port));
    const Launch launch{options, getpid(), port, listener.value};
    for (int rank = 0; rank < options.ranks; ++rank) start(rank, launch);
  } catch (...) {
    kill_everything();
    throw;
  }
}

Ranks::~Ranks() { kill_everything(); }

void Ranks::start(int rank, const Launch& launch) {
  const Options& options = launch.options;
  Pipe error, out, err;
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launch.parent) _exit(1);
    connect_stdin(rank);
    if (options.prefix) {
      dup2(out.write.value, STDOUT_FILENO);
      dup2(err.write.value, STDERR_FILENO);
    }
    set_environment(options, rank, launch.port, launch.listener);
    if (rank == 0) fcntl(launch.listener, F_SETFD, 0);
    reset_signals();
    auto argv = to_argv(options.command);
    execvp(argv[0], argv.data());
    const int reason = errno;
    [[maybe_unused]] const ssize_t sent = write(error.write.value, &reason, sizeof(reason));
    _exit(127);
  }
  setpgid(pid, pid);  // here too: whoever comes first
  pids_.push_back(pid);
  alive_.push_back(true);
  ++running_;
  watch(guard_, pid);
  error.write.reset();
  int reason = 0;
  if (read(error.read.value, &reason, sizeof(reason)) == sizeof(reason)) {
    throw ExecError{"cannot run '" + options.command[0] + "': " + strerror(reason),
                    reason == ENOENT ? 127 : 126};
  }
  if (options.prefix) {
    streams_.emplace_back(rank, out.read.release(), STDOUT_FILENO);
    streams_.emplace_back(rank, err.read.release(), STDERR_FILENO);
  }
}

std::vector<RankExit> Ranks::reap() {
  std::vector<RankExit> exits;
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto found = std::find(pids_.begin(), pids_.end(), pid);
    if (found == pids_.end()) continue;  // an adopted orphan
    const auto rank = static_cast<size_t>(found - pids_.begin());
    if (!alive_[rank]) continue;
    alive_[rank] = false;
    --running_;
    exits.push_back({static_cast<int>(rank), status});
  }
  // A rank that crashes makes others fail soon after: name the crash.
  std::stable_partition(exits.begin(), exits.end(), [](const RankExit& exit) { return exit.signalled(); });
  return exits;
}

void Ranks::signal(int number) {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    if (alive_[rank]) kill(-pids_[rank], number);
  }
}

void Ranks::kill_everything() {
  for (const pid_t pid : pids_) kill(-pid, SIGKILL);
  stop_guard(guard_);
  // Orphans that left their rank's group come to us as their parents die.
  for (std::vector<pid_t> left = children(); !left.empty(); left = children()) {
    for (const pid_t pid : left) kill(pid, SIGKILL);
    if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) break;
  }
  pids_.clear();
  alive_.clear();
  running_ = 0;
}

}  // namespace cleave::run
