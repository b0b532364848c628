#include "core/shm/segment.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <thread>

namespace cleave::shm {
namespace {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::string reason(const char* call) { return std::string(call) + ": " + std::strerror(errno); }

}  // namespace

Segment::Segment(const Exchange& exchange, const std::vector<int>& global_ranks, int rank, std::string group,
                 std::chrono::milliseconds timeout)
    : global_ranks_(global_ranks), rank_(rank), group_(std::move(group)), timeout_(timeout) {
  const auto size = static_cast<int>(global_ranks.size());
  // Spinning only pays while every rank has a core of its own.
  spins_ = static_cast<unsigned>(size) <= std::thread::hardware_concurrency() ? 4000 : 0;
  bytes_ = static_cast<size_t>(size) * (sizeof(RankState) + 2 * kSlotBytes);
  const std::string me = std::to_string(global_ranks[static_cast<size_t>(rank)]);

  // Rank 0 makes the memory, everyone maps it and says how that went, everyone reads everyone's word.
  std::string error;
  int fd = -1;
  if (rank == 0) {
    fd = memfd_create("cleave", MFD_CLOEXEC);
    if (fd < 0) {
      error = reason("memfd_create");
    } else if (ftruncate(fd, static_cast<off_t>(bytes_)) != 0 ||
               posix_fallocate(fd, 0, static_cast<off_t>(bytes_)) != 0) {
      error = reason("reserving the memory");
    }
    exchange.set("fd", error.empty() ? std::to_string(getpid()) + "/fd/" + std::to_string(fd) : "none");
  }
  const std::string made = exchange.get("fd");
  if (rank != 0 && made != "none") {
    const std::string path = "/proc/" + made;
    fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) error = reason(("opening " + path).c_str()) + " (ranks in different containers?)";
  }
  if (error.empty() && made != "none") {
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
      error = reason("mmap");
    } else {
      memory_ = static_cast<std::byte*>(mapped);
      new (&state(rank)) RankState();
    }
  }
  exchange.set("pid" + std::to_string(rank), std::to_string(getpid()));
  exchange.set("map" + std::to_string(rank), "." + error);
  std::string failed;
  for (int peer = 0; peer < size; ++peer) {
    const std::string word = exchange.get("map" + std::to_string(peer)).substr(1);
    if (!word.empty() && failed.empty()) {
      failed = "rank " + std::to_string(global_ranks[static_cast<size_t>(peer)]) + ": " + word;
    }
  }
  // The creator's descriptor must stay open until all have opened it, which is now.
  if (fd >= 0) close(fd);
  if (!failed.empty()) {
    unmap();
    // Rank 0 may be the one that serves the store: it leaves when all have read what happened.
    exchange.set("read" + std::to_string(rank), "");
    for (int peer = 0; rank == 0 && peer < size; ++peer) exchange.get("read" + std::to_string(peer));
    TORCH_CHECK(false, "cleave: group '", group_, "' needs ", bytes_ >> 10,
                " KiB of shared memory and could not get it; ", failed,
                ". Free memory, or choose the gloo backend. (rank ", me, ")");
  }
  for (int peer = 0; peer < size; ++peer) {
    const int pid = std::stoi(exchange.get("pid" + std::to_string(peer)));
    pidfds_.push_back(peer == rank ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  }
}

Segment::~Segment() {
  if (memory_ != nullptr) state(rank_).gone.store(1, std::memory_order_release);
  unmap();
  for (const int fd : pidfds_) {
    if (fd >= 0) close(fd);
  }
}

void Segment::unmap() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  memory_ = nullptr;
}

Segment::RankState& Segment::state(int rank) const {
  return *reinterpret_cast<RankState*>(memory_ + static_cast<size_t>(rank) * sizeof(RankState));
}

std::byte* Segment::slot(int rank, uint64_t round) const {
  return memory_ + global_ranks_.size() * sizeof(RankState) +
         (static_cast<size_t>(rank) * 2 + round % 2) * kSlotBytes;
}

void Segment::fail(const std::string& message) {
  state(rank_).gone.store(1, std::memory_order_release);
  TORCH_CHECK(false, "cleave: ", message, " (group '", group_, "', rank ",
              global_ranks_[static_cast<size_t>(rank_)], ")");
}

void Segment::check_alive(int peer, const char* doing) {
  const int fd = pidfds_[static_cast<size_t>(peer)];
  pollfd poller{fd, POLLIN, 0};
  const bool dead = fd >= 0 && poll(&poller, 1, 0) == 1;
  if (dead || state(peer).gone.load(std::memory_order_acquire) != 0) {
    fail("rank " + std::to_string(global_ranks_[static_cast<size_t>(peer)]) +
         (dead ? " died" : " has left or failed") + " while this rank waited for it " + doing);
  }
}

template <class Ready>
void Segment::wait_for(int peer, const char* doing, Ready ready) {
  for (int i = 0; i < spins_; ++i) {
    if (ready()) return;
    pause_cpu();
  }
  const auto start = std::chrono::steady_clock::now();
  auto next_check = start + std::chrono::milliseconds(2);
  for (int i = 0;; ++i) {
    if (ready()) return;
    const auto now = std::chrono::steady_clock::now();
    if (now >= next_check) {
      if (ready()) return;
      check_alive(peer, doing);
      if (now - start > timeout_) {
        fail("rank " + std::to_string(global_ranks_[static_cast<size_t>(peer)]) + " did not come within " +
             std::to_string(timeout_.count()) + " ms while this rank waited for it " + doing);
      }
      next_check = now + std::chrono::milliseconds(2);
    }
    if (now - start < std::chrono::milliseconds(1)) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

std::byte* Segment::begin_round() {
  TORCH_CHECK(state(rank_).gone.load(std::memory_order_relaxed) == 0, "cleave: group '", group_, "' (rank ",
              global_ranks_[static_cast<size_t>(rank_)],
              ") failed in an earlier collective and cannot be used again");
  if (round_ >= 2) {
    for (int peer = 0; peer < static_cast<int>(global_ranks_.size()); ++peer) {
      if (peer == rank_) continue;
      wait_for(peer, "to finish an earlier collective",
               [&] { return state(peer).finished.load(std::memory_order_acquire) >= round_ - 1; });
    }
  }
  return slot(rank_, round_);
}

void Segment::post(const RoundHeader& header) {
  state(rank_).headers[round_ % 2] = header;
  state(rank_).posted.store(round_ + 1, std::memory_order_release);
}

const std::byte* Segment::await(int peer, const RoundHeader& mine) {
  wait_for(peer, "to join a collective",
           [&] { return state(peer).posted.load(std::memory_order_acquire) > round_; });
  const RoundHeader& theirs = state(peer).headers[round_ % 2];
  if (!theirs.matches(mine)) {
    auto text = [](const RoundHeader& header) {
      static constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce",
                                               "broadcast",  "all_to_all",     "barrier"};
      return std::string(kNames[(header.kind >> 8) % 6]) + " (variant " + std::to_string(header.kind & 255) +
             ") of " + std::to_string(header.bytes) + " bytes, dtype " + std::to_string(header.dtype);
    };
    fail("the ranks run different collectives: this rank " + text(mine) + ", rank " +
         std::to_string(global_ranks_[static_cast<size_t>(peer)]) + " " + text(theirs));
  }
  return slot(peer, round_);
}

uint64_t Segment::peer_detail(int peer) const { return state(peer).headers[round_ % 2].detail; }

void Segment::finish_round() {
  ++round_;
  state(rank_).finished.store(round_, std::memory_order_release);
}

}  // namespace cleave::shm
