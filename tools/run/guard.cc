#include "run/guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

namespace cleave::run {
namespace {

[[noreturn]] void run_guard(int pipe) {
  setsid();  // a Ctrl-C at the terminal is not for us
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2; ++fd) dup2(null, fd);
  std::vector<pid_t> groups;
  pid_t group = 0;
  for (;;) {
    const ssize_t count = read(pipe, &group, sizeof(group));
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof(group)) break;
    groups.push_back(group);
  }
  for (const pid_t each : groups) kill(-each, SIGKILL);
  _exit(0);
}

}  // namespace

Guard start_guard() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) {
    close(ends[1]);
    run_guard(ends[0]);
  }
  close(ends[0]);
  return {pid, ends[1]};
}

void watch(const Guard& guard, pid_t group) {
  if (write(guard.pipe, &group, sizeof(group)) != sizeof(group)) {
    throw std::system_error(errno, std::generic_category(), "guard");
  }
}

void stop_guard(Guard& guard) {
  if (guard.pid < 0) return;
  kill(guard.pid, SIGKILL);  // before the pipe closes: groups may be gone and their numbers reused
  waitpid(guard.pid, nullptr, 0);
  close(guard.pipe);
  guard = {};
}

}  // namespace cleave::run
