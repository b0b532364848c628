// The processes of a job: start, signal, reap, and leave none behind.
//
// Each rank leads its own process group, so that what it starts can be ended with it. This process
// adopts orphans (PR_SET_CHILD_SUBREAPER), the kernel kills ranks when this process dies
// (PR_SET_PDEATHSIG), and a guard process does the same for whatever the ranks have started.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "run/guard.h"
#include "run/options.h"
#include "run/output.h"

namespace cleave::run {

// How one rank ended.
struct RankExit {
  int rank = 0;
  int status = 0;  // from waitpid

  bool failed() const { return status != 0; }
  bool signalled() const;
  int code() const;         // exit code, or 128 + signal
  std::string str() const;  // "rank 1 was killed by SIGSEGV"
};

// The program could not be executed.
struct ExecError {
  std::string message;
  int code;  // 127: not found, 126: found but not executable
};

class Ranks {
 public:
  // Starts all ranks. Throws ExecError when the program cannot be executed, std::system_error when the
  // machine cannot start it; nothing is left running then.
  explicit Ranks(const Options& options);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // The ranks that ended since the last call; those killed by a signal first.
  std::vector<RankExit> reap();
  // To the process groups of all running ranks.
  void signal(int number);
  // Ranks and whatever they have started.
  void kill_everything();
  bool running() const { return running_ > 0; }
  std::vector<Stream>& streams() { return streams_; }

 private:
  struct Launch;
  void start(int rank, const Launch& launch);

  std::vector<pid_t> pids_;  // process id and process group of each rank
  std::vector<bool> alive_;
  int running_ = 0;
  std::vector<Stream> streams_;
  Guard guard_;
};

}  // namespace cleave::run
