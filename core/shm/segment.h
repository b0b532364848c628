// Memory shared by the ranks of one group on one host, and the rounds in which they meet there.
//
// Every collective is a sequence of rounds. In a round each rank fills its slot, post()s it with a
// header that says what it is doing, await()s the others' posts (headers must match), reads their
// slots, and finish()es. A slot is written again two rounds later, after every rank has finished.
//
// The segment is an anonymous memfd that peers open through /proc: it has no name, so nothing can be
// left behind, however a rank dies. Its pages are reserved at creation, so that a full memory is an
// error then and not a bus error later.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cleave::shm {

// What a rank says it is doing; all ranks of a round must agree on everything but `detail`.
struct RoundHeader {
  uint64_t kind = 0;  // collective and reduce operation
  uint64_t bytes = 0;
  uint64_t dtype = 0;
  uint64_t detail = 0;  // may differ between ranks
  bool matches(const RoundHeader& other) const {
    return kind == other.kind && bytes == other.bytes && dtype == other.dtype;
  }
};

// Exchange of small texts between the ranks at set-up (a c10d store).
struct Exchange {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;  // blocks until set
};

class Segment {
 public:
  static constexpr size_t kSlotBytes = size_t{512} << 10;

  // Collective over the group; throws on all ranks when any cannot make or map the memory.
  Segment(const Exchange& exchange, const std::vector<int>& global_ranks, int rank, std::string group,
          std::chrono::milliseconds timeout);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // This rank's slot of the coming round; waits until its last readers have finished.
  std::byte* begin_round();
  void post(const RoundHeader& header);
  // Waits for `peer`'s post and returns its slot. Throws when the peer died, left, timed out or does
  // something else (then on all ranks, naming who does what).
  const std::byte* await(int peer, const RoundHeader& mine);
  uint64_t peer_detail(int peer) const;  // after await()
  void finish_round();

 private:
  struct alignas(128) RankState {
    std::atomic<uint64_t> posted{0};
    alignas(128) std::atomic<uint64_t> finished{0};
    alignas(128) std::atomic<uint32_t> gone{0};  // left or failed: waiting for it is pointless
    RoundHeader headers[2];
  };
  RankState& state(int rank) const;
  std::byte* slot(int rank, uint64_t round) const;
  template <class Ready>
  void wait_for(int peer, const char* doing, Ready ready);
  void check_alive(int peer, const char* doing);
  [[noreturn]] void fail(const std::string& message);
  void unmap();

  std::vector<int> global_ranks_;
  int rank_;
  std::string group_;
  std::chrono::milliseconds timeout_;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  std::vector<int> pidfds_;
  uint64_t round_ = 0;
  int spins_;
};

}  // namespace cleave::shm
