#include "gpt/process_stats.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace gpt {
namespace {

double clock_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A field of /proc/self/status in MiB; 0 where there is none.
double status_mib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  return 0;
}

}  // namespace

double peak_rss_mib() {
  if (const double peak = status_mib("VmHWM"); peak > 0) return peak;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double rss_mib() { return status_mib("VmRSS"); }

double cpu_seconds() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }

double seconds_since_start() {
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  // The name in parentheses may hold spaces; the start is the 20th field behind it.
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  return clock_seconds(CLOCK_BOOTTIME) - std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double load_average() {
  double average = 0;
  return getloadavg(&average, 1) == 1 ? average : 0;
}

}  // namespace gpt
