#include "core/from_local_check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "core/local_part.h"

namespace cleave {
namespace {

constexpr int64_t kMaxDims = 16;

// FNV-1a over the bytes.
int64_t hash_of(const at::Tensor& tensor) {
  const auto bytes = tensor.detach().contiguous().cpu();
  const auto* data = static_cast<const unsigned char*>(bytes.const_data_ptr());
  uint64_t hash = 1469598103934665603ULL;
  for (size_t i = 0; i < bytes.nbytes(); ++i) hash = (hash ^ data[i]) * 1099511628211ULL;
  return static_cast<int64_t>(hash);
}

// What one rank says of its tensor.
struct Report {
  std::vector<int64_t> sizes;
  int64_t dtype, hash;
};

std::vector<int64_t> encode(const at::Tensor& local) {
  TORCH_CHECK_VALUE(local.dim() <= kMaxDims, "cleave: from_local: at most ", kMaxDims,
                    " dimensions can be checked");
  std::vector<int64_t> words{local.dim(), static_cast<int64_t>(local.scalar_type()), hash_of(local)};
  words.insert(words.end(), local.sizes().begin(), local.sizes().end());
  words.resize(static_cast<size_t>(3 + kMaxDims), 0);
  return words;
}

Report decode(const int64_t* words) { return {{words + 3, words + 3 + words[0]}, words[1], words[2]}; }

// The reports of all ranks of the mesh, row-major.
std::vector<Report> gather(const at::Tensor& local, const DeviceMesh& mesh) {
  const auto words = encode(local);
  auto all = at::tensor(words, at::kLong).to(at::Device(mesh.device()));
  for (int64_t i = mesh.ndim(); i-- > 0;) {
    auto wider = at::empty({all.numel() * mesh.size(i)}, all.options());
    mesh.group(i).all_gather(wider, all).wait();
    all = wider;
  }
  all = all.cpu();
  std::vector<Report> reports;
  for (int64_t r = 0; r < mesh.size(); ++r)
    reports.push_back(decode(all.const_data_ptr<int64_t>() + r * static_cast<int64_t>(words.size())));
  return reports;
}

int64_t index_of(const std::vector<int64_t>& coordinate, const std::vector<int64_t>& shape) {
  int64_t index = 0;
  for (size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + coordinate[d];
  return index;
}

// Along each tensor dimension: the sum over the ranks that split it, the others at coordinate 0.
std::vector<int64_t> inferred(const std::vector<Report>& reports, const DeviceMesh& mesh,
                              const Placements& placements) {
  auto sizes = reports[0].sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t total = 0;
    for (int64_t r = 0; r < mesh.size(); ++r) {
      const auto coordinate = coordinate_of(r, mesh.shape());
      bool counts = true;
      for (size_t i = 0; i < placements.size(); ++i) {
        const auto dim = static_cast<int64_t>(d), rank = static_cast<int64_t>(sizes.size());
        counts &= coordinate[i] == 0 || placements[i].splits(dim) || placements[i].splits(dim - rank);
      }
      const auto& theirs = reports[static_cast<size_t>(r)].sizes;
      if (counts && d < theirs.size()) total += theirs[d];
    }
    sizes[d] = total;
  }
  return sizes;
}

}  // namespace

std::vector<int64_t> checked_sizes(const at::Tensor& local, const DeviceMesh& mesh,
                                   const Placements& placements, std::optional<std::vector<int64_t>> sizes) {
  const auto reports = gather(local, mesh);
  for (const auto& placement : placements) {
    TORCH_CHECK_VALUE(sizes || !placement.is_ragged(),
                      "cleave: from_local needs the global sizes for a ragged shard");
  }
  if (!sizes) sizes = inferred(reports, mesh, placements);
  const DTensorSpec spec(mesh, placements, *sizes, static_cast<c10::ScalarType>(reports[0].dtype));
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const auto coordinate = coordinate_of(r, mesh.shape());
    const auto& report = reports[static_cast<size_t>(r)];
    const auto rank = mesh.ranks()[static_cast<size_t>(r)];
    TORCH_CHECK_TYPE(report.dtype == reports[0].dtype, "cleave: from_local: rank ", rank, " has dtype ",
                     c10::toString(static_cast<c10::ScalarType>(report.dtype)), ", rank ", mesh.ranks()[0],
                     " has ", c10::toString(spec.dtype()));
    const auto wanted = spec.local_sizes(coordinate);
    TORCH_CHECK_VALUE(report.sizes == wanted, "cleave: from_local: ", spec.str(),
                      " needs a local tensor of sizes ", c10::IntArrayRef(wanted), " on rank ", rank,
                      ", got ", c10::IntArrayRef(report.sizes));
    for (size_t i = 0; i < placements.size(); ++i) {
      if (!placements[i].is_replicate()) continue;
      auto first = coordinate;
      first[i] = 0;
      const auto other = static_cast<size_t>(index_of(first, mesh.shape()));
      TORCH_CHECK_VALUE(report.hash == reports[other].hash, "cleave: from_local: ", spec.str(),
                        " is Replicate over '", mesh.dim_names()[i], "', but ranks ", mesh.ranks()[other],
                        " and ", rank, " have different values");
    }
  }
  return *sizes;
}

}  // namespace cleave
