#include "gpt/text_data.h"

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace gpt {
namespace {

namespace fs = std::filesystem;

// Of each split; below it windows would mostly repeat.
constexpr size_t kWindowsAtLeast = 4;

bool is_text(const fs::path& path) {
  static const std::vector<std::string> kinds = {".h",  ".hpp", ".cuh", ".c",  ".cc",  ".cpp",
                                                 ".cu", ".py",  ".txt", ".md", ".rst", ".json"};
  return std::find(kinds.begin(), kinds.end(), path.extension().string()) != kinds.end();
}

std::vector<fs::path> files_of(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (error || !fs::exists(status)) {
    throw DataError(
        absl::StrCat("--data: expected a file or folder, got '", path, "', which does not exist"));
  }
  if (!fs::is_directory(status)) {
    if (fs::is_regular_file(status) && fs::file_size(path) == 0) {
      throw DataError(absl::StrCat("--data: expected a file with text, got '", path, "' of 0 bytes"));
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

void TextData::add_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) {
    throw DataError(absl::StrCat("--data: cannot read '", path, "'"));
  }
  text_.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  ++files_;
}

TextData TextData::load(const std::vector<std::string>& paths, int64_t seq) {
  TextData data;
  data.seq_ = seq;
  for (const auto& path : paths) {
    for (const auto& file : files_of(path)) {
      data.add_file(file.string());
    }
  }
  const size_t size = data.text_.size();
  data.split_ = size - size / 20;
  const size_t least = kWindowsAtLeast * (static_cast<size_t>(seq) + 1);
  if (size / 20 < least) {
    throw DataError(absl::StrCat("--data: too little text for sequences of ", seq,
                                 " bytes: expected at least ", 20 * least, " bytes (5 % are held out), got ",
                                 size, " bytes in ", data.files_, " files"));
  }
  return data;
}

Batch TextData::training_batch(const WindowKey& key, int64_t rows) const {
  const uint64_t mixed =
      mix(mix(mix(key.seed) + static_cast<uint64_t>(key.step)) + static_cast<uint64_t>(key.micro_batch));
  const uint64_t choices = split_ - static_cast<size_t>(seq_);
  std::vector<size_t> begins;
  for (int64_t row = 0; row < rows; ++row) {
    begins.push_back(mix(mixed + static_cast<uint64_t>(key.rank * rows + row)) % choices);
  }
  return windows(begins);
}

Batch TextData::held_out_batch(int64_t index, int64_t count, int64_t rows) const {
  const size_t choices = text_.size() - split_ - static_cast<size_t>(seq_);
  std::vector<size_t> begins;
  for (int64_t row = 0; row < rows; ++row) {
    begins.push_back(split_ +
                     static_cast<size_t>(index * rows + row) * choices / static_cast<size_t>(count * rows));
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

}  // namespace gpt
