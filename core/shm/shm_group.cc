#include "core/shm/shm_group.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/ordered_sum.h"
#include "core/shm/stream_copy.h"

namespace cleave {
namespace {

using shm::RoundHeader;
using shm::Segment;

constexpr size_t kSlot = Segment::kSlotBytes;
using PerRank = c10::SmallVector<int64_t, 16>;

uint64_t kind_of(Collective kind, int variant) {
  return (static_cast<uint64_t>(kind) << 8) | static_cast<uint64_t>(variant);
}

class ShmGroup final : public CountedGroup {
 public:
  ShmGroup(const std::string& name, std::vector<int> ranks, int rank, const shm::Exchange& exchange,
           std::chrono::milliseconds timeout)
      : CountedGroup(name, "shm", ranks, rank), segment_(exchange, ranks, rank, name, timeout) {}

 private:
  static std::byte* bytes(const at::Tensor& tensor) {
    return static_cast<std::byte*>(tensor.mutable_data_ptr());
  }

  // Peers in an order that starts behind this rank, so that not all read the same one at once.
  template <class Function>
  void for_each_peer(Function function) {
    for (int i = 1; i < size(); ++i) function((rank() + i) % size());
  }

  Work do_all_gather(at::Tensor output, at::Tensor input) override {
    gather(bytes(output), bytes(input), input.nbytes(), kind_of(Collective::kAllGather, 0),
           static_cast<uint64_t>(input.scalar_type()));
    return {};
  }

  void gather(std::byte* out, const std::byte* in, size_t total, uint64_t kind, uint64_t dtype) {
    const bool streams = total * static_cast<size_t>(size()) >= shm::kStreamFrom;
    for (size_t begin = 0; begin < total; begin += kSlot) {
      const size_t count = std::min(kSlot, total - begin);
      const RoundHeader header{kind, total, dtype, 0};
      std::memcpy(segment_.begin_round(), in + begin, count);
      segment_.post(header);
      std::byte* mine = out + static_cast<size_t>(rank()) * total + begin;
      if (mine != in + begin) copy_out(mine, in + begin, count, streams);
      for_each_peer([&](int peer) {
        copy_out(out + static_cast<size_t>(peer) * total + begin, segment_.await(peer, header), count,
                 streams);
      });
      segment_.finish_round();
    }
  }

  static void copy_out(std::byte* to, const std::byte* from, size_t bytes, bool streams) {
    if (streams) {
      shm::copy_streaming(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  // `starts[d]`, `counts[d]` (elements): what each rank d reduces; equal on all ranks.
  void scatter(std::byte* out, const std::byte* in, int64_t longest, const PerRank& starts,
               const PerRank& counts, c10::ScalarType dtype, ReduceOp op, double scale,
               const RoundHeader& header, bool streams) {
    const size_t width = c10::elementSize(dtype);
    const auto piece = static_cast<int64_t>(kSlot / static_cast<size_t>(size()) / width / 16 * 16);
    c10::SmallVector<const void*, 16> terms(static_cast<size_t>(size()));
    for (int64_t begin = 0; begin < longest; begin += piece) {
      auto part = [&](int owner) {
        return std::clamp<int64_t>(counts[static_cast<size_t>(owner)] - begin, 0, piece);
      };
      auto source = [&](int owner) {
        return in + static_cast<size_t>(starts[static_cast<size_t>(owner)] + begin) * width;
      };
      std::byte* slot = segment_.begin_round();
      for_each_peer([&](int peer) {
        std::memcpy(slot + static_cast<size_t>(peer * piece) * width, source(peer),
                    static_cast<size_t>(part(peer)) * width);
      });
      segment_.post(header);
      terms[static_cast<size_t>(rank())] = source(rank());
      for_each_peer([&](int peer) {
        terms[static_cast<size_t>(peer)] =
            segment_.await(peer, header) + static_cast<size_t>(rank() * piece) * width;
      });
      std::byte* result = out + static_cast<size_t>(begin) * width;
      if (streams) {
        reduce_streaming(result, terms.data(), part(rank()), dtype, op, scale);
      } else {
        ordered_reduce(result, terms.data(), size(), part(rank()), dtype, op, scale);
      }
      segment_.finish_round();
    }
  }

  // Sums in the first-level cache, then past the caches into `out`. Moves `terms` on.
  void reduce_streaming(std::byte* out, const void** terms, int64_t count, c10::ScalarType dtype, ReduceOp op,
                        double scale) {
    alignas(64) std::array<std::byte, 16 << 10> sums;
    const size_t width = c10::elementSize(dtype);
    const auto block = static_cast<int64_t>(sums.size() / width);
    for (int64_t begin = 0; begin < count; begin += block) {
      const int64_t n = std::min(block, count - begin);
      const size_t bytes = static_cast<size_t>(n) * width;
      ordered_reduce(sums.data(), terms, size(), n, dtype, op, scale);
      shm::copy_streaming(out + static_cast<size_t>(begin) * width, sums.data(), bytes);
      for (int r = 0; r < size(); ++r) terms[r] = static_cast<const std::byte*>(terms[r]) + bytes;
    }
  }

  Work do_reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, double scale) override {
    const int64_t chunk = output.numel();
    PerRank starts, counts;
    for (int r = 0; r < size(); ++r) {
      starts.push_back(r * chunk);
      counts.push_back(chunk);
    }
    const RoundHeader header{kind_of(Collective::kReduceScatter, static_cast<int>(op)), output.nbytes(),
                             static_cast<uint64_t>(output.scalar_type()), 0};
    scatter(bytes(output), bytes(input), chunk, starts, counts, output.scalar_type(), op, scale, header,
            output.nbytes() >= shm::kStreamFrom);
    return {};
  }

  Work do_all_reduce(at::Tensor tensor, ReduceOp op, double scale) override {
    const int64_t chunk = (tensor.numel() + size() - 1) / size();
    PerRank starts, counts;
    for (int r = 0; r < size(); ++r) {
      starts.push_back(std::min(tensor.numel(), r * chunk));
      counts.push_back(std::clamp<int64_t>(tensor.numel() - r * chunk, 0, chunk));
    }
    const RoundHeader header{kind_of(Collective::kAllReduce, static_cast<int>(op)), tensor.nbytes(),
                             static_cast<uint64_t>(tensor.scalar_type()), 0};
    const size_t width = tensor.element_size();
    std::byte* data = bytes(tensor);
    std::byte* own = data + static_cast<size_t>(starts[static_cast<size_t>(rank())]) * width;
    scatter(own, data, chunk, starts, counts, tensor.scalar_type(), op, scale, header, false);
    const auto step = static_cast<int64_t>(kSlot / width);
    for (int64_t begin = 0; begin < chunk; begin += step) {
      auto part = [&](int owner) {
        return static_cast<size_t>(std::clamp<int64_t>(counts[static_cast<size_t>(owner)] - begin, 0, step)) *
               width;
      };
      std::memcpy(segment_.begin_round(), own + static_cast<size_t>(begin) * width, part(rank()));
      segment_.post(header);
      for_each_peer([&](int peer) {
        std::memcpy(data + static_cast<size_t>(starts[static_cast<size_t>(peer)] + begin) * width,
                    segment_.await(peer, header), part(peer));
      });
      segment_.finish_round();
    }
    return {};
  }

  Work do_broadcast(at::Tensor tensor, int root) override {
    const size_t total = tensor.nbytes();
    const RoundHeader header{kind_of(Collective::kBroadcast, root), total,
                             static_cast<uint64_t>(tensor.scalar_type()), 0};
    for (size_t begin = 0; begin < total; begin += kSlot) {
      const size_t count = std::min(kSlot, total - begin);
      std::byte* slot = segment_.begin_round();
      if (rank() == root) std::memcpy(slot, bytes(tensor) + begin, count);
      segment_.post(header);
      for_each_peer([&](int peer) {
        const std::byte* theirs = segment_.await(peer, header);
        if (peer == root) std::memcpy(bytes(tensor) + begin, theirs, count);
      });
      segment_.finish_round();
    }
    return {};
  }

  Work do_all_to_all(at::Tensor output, at::Tensor input, const std::vector<int64_t>& output_splits,
                     const std::vector<int64_t>& input_splits) override {
    const size_t width = input.element_size();
    std::vector<size_t> in_start{0}, out_start{0};
    for (int r = 0; r < size(); ++r) {
      in_start.push_back(in_start.back() + static_cast<size_t>(input_splits[static_cast<size_t>(r)]) * width);
      out_start.push_back(out_start.back() +
                          static_cast<size_t>(output_splits[static_cast<size_t>(r)]) * width);
    }
    // One round to learn the longest message of all pairs.
    const RoundHeader probe{
        kind_of(Collective::kAllToAll, 0), 0, static_cast<uint64_t>(input.scalar_type()),
        static_cast<uint64_t>(*std::max_element(input_splits.begin(), input_splits.end())) * width};
    size_t longest = probe.detail;
    segment_.begin_round();
    segment_.post(probe);
    for_each_peer([&](int peer) {
      segment_.await(peer, probe);
      longest = std::max<size_t>(longest, segment_.peer_detail(peer));
    });
    segment_.finish_round();

    auto part = [](const std::vector<size_t>& start, int r, size_t begin, size_t piece) {
      const size_t count = start[static_cast<size_t>(r) + 1] - start[static_cast<size_t>(r)];
      return begin < count ? std::min(piece, count - begin) : size_t{0};
    };
    const size_t piece = kSlot / static_cast<size_t>(size()) / 64 * 64;
    const RoundHeader header{kind_of(Collective::kAllToAll, 1), longest, probe.dtype, 0};
    for (size_t begin = 0; begin < longest; begin += piece) {
      std::byte* slot = segment_.begin_round();
      for_each_peer([&](int peer) {
        std::memcpy(slot + static_cast<size_t>(peer) * piece,
                    bytes(input) + in_start[static_cast<size_t>(peer)] + begin,
                    part(in_start, peer, begin, piece));
      });
      segment_.post(header);
      std::memcpy(bytes(output) + out_start[static_cast<size_t>(rank())] + begin,
                  bytes(input) + in_start[static_cast<size_t>(rank())] + begin,
                  part(in_start, rank(), begin, piece));
      for_each_peer([&](int peer) {
        std::memcpy(bytes(output) + out_start[static_cast<size_t>(peer)] + begin,
                    segment_.await(peer, header) + static_cast<size_t>(rank()) * piece,
                    part(out_start, peer, begin, piece));
      });
      segment_.finish_round();
    }
    return {};
  }

  Segment segment_;
};

}  // namespace

ProcessGroupPtr make_shm_group(const std::string& name, std::vector<int> global_ranks, int rank,
                               const shm::Exchange& exchange, std::chrono::milliseconds timeout) {
  return std::make_shared<ShmGroup>(name, std::move(global_ranks), rank, exchange, timeout);
}

}  // namespace cleave
