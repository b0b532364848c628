#include "examples/gpt/text_data.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

// Of each split; below it windows would mostly repeat.
constexpr size_t kWindowsAtLeast = 4;

bool is_text(const fs::path& path) {
  static constexpr std::array<std::string_view, 12> kinds = {
      ".h", ".hpp", ".cuh", ".c", ".cc", ".cpp", ".cu", ".py", ".txt", ".md", ".rst", ".json"};
  return std::find(kinds.begin(), kinds.end(), path.extension().string()) != kinds.end();
}

std::vector<fs::path> files_of(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (error || !fs::exists(status)) {
    throw std::runtime_error(absl::StrCat("--data: expected a file or folder, got '", path, "', which does not exist"));
  }
  if (!fs::is_directory(status)) {
    if (fs::is_regular_file(status) && fs::file_size(path) == 0) {
      throw std::runtime_error(absl::StrCat("--data: expected a file with text, got '", path, "' of 0 bytes"));
    }
    return {path};
  }
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::recursive_directory_iterator(path, fs::directory_options::follow_directory_symlink)) {
    if (entry.is_regular_file() && is_text(entry.path())) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

TextData::TextData(const std::vector<std::string>& paths, int64_t seq) : seq_(seq) {
  for (const auto& path : paths) {
    for (const auto& file : files_of(path)) {
      std::ifstream in(file, std::ios::binary);
      const std::string content{std::istreambuf_iterator<char>(in), {}};
      if (in.bad() || !in.is_open()) {
        throw std::runtime_error(absl::StrCat("--data: cannot read '", file.string(), "'"));
      }
      text_ += content;
      ++files_;
    }
  }
  split_ = text_.size() - text_.size() / 20;
  const size_t window = static_cast<size_t>(seq) + 1;
  if (text_.size() - split_ < kWindowsAtLeast * window) {
    throw std::runtime_error(absl::StrCat(
        "--data: too little text for sequences of ", seq, " bytes: expected at least ",
        20 * kWindowsAtLeast * window, " bytes (5 % are held out), got ", text_.size(), " bytes in ", files_, " files"));
  }
}

Batch TextData::train(uint64_t seed, int64_t step, int64_t micro, int64_t first_row, int64_t rows) const {
  const uint64_t key = mix(mix(mix(seed) + static_cast<uint64_t>(step)) + static_cast<uint64_t>(micro));
  const uint64_t choices = split_ - static_cast<size_t>(seq_);
  std::vector<size_t> begins;
  for (int64_t row = first_row; row < first_row + rows; ++row) {
    begins.push_back(mix(key + static_cast<uint64_t>(row)) % choices);
  }
  return windows(begins);
}

Batch TextData::held_out(int64_t first_row, int64_t rows, int64_t total) const {
  const size_t choices = text_.size() - split_ - static_cast<size_t>(seq_);
  std::vector<size_t> begins;
  for (int64_t row = first_row; row < first_row + rows; ++row) {
    begins.push_back(split_ + static_cast<size_t>(row) * choices / static_cast<size_t>(total));
  }
  return windows(begins);
}

Batch TextData::windows(const std::vector<size_t>& begins) const {
  const auto rows = static_cast<int64_t>(begins.size());
  auto tokens = at::empty({rows, seq_ + 1}, at::kLong);
  auto* out = tokens.data_ptr<int64_t>();
  for (const size_t begin : begins) {
    for (int64_t i = 0; i <= seq_; ++i) {
      *out++ = static_cast<unsigned char>(text_[begin + static_cast<size_t>(i)]);
    }
  }
  return {tokens.narrow(1, 0, seq_).contiguous(), tokens.narrow(1, 1, seq_).contiguous()};
}

uint64_t TextData::hash() const {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : text_) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

Batch synthetic_batch(uint64_t seed, int64_t vocab, int64_t seq, int64_t first_row, int64_t rows, int64_t total) {
  auto generator = at::detail::createCPUGenerator(seed + 1);
  auto tokens = at::randint(vocab, {total, seq + 1}, generator, at::kLong).narrow(0, first_row, rows);
  return {tokens.narrow(1, 0, seq).contiguous(), tokens.narrow(1, 1, seq).contiguous()};
}

}  // namespace gpt
