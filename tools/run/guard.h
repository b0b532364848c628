// Ends the ranks' process groups when cleave-run itself was killed and could not do it.
#pragma once

#include <sys/types.h>

namespace cleave::run {

struct Guard {
  pid_t pid = -1;
  int pipe = -1;  // process groups to watch are written here; its closing is the alarm
};

Guard start_guard();
void watch(const Guard& guard, pid_t group);
void stop_guard(Guard& guard);

}  // namespace cleave::run
