// Bytes of text files as training data: windows drawn deterministically, the last 5 % held out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpt {

using Batch = std::pair<at::Tensor, at::Tensor>;  // inputs and targets, int64 [rows, seq]

class TextData {
 public:
  // paths: files and folders (all source and text files below, in the order of their paths). Throws
  // std::runtime_error with what was expected and what was found: a missing path, an empty file, less
  // text than a batch of `seq` + 1 byte windows needs.
  TextData(const std::vector<std::string>& paths, int64_t seq);

  // Rows [first_row, first_row + rows) of the global micro-batch; they depend on nothing but the
  // arguments and the text.
  Batch train(uint64_t seed, int64_t step, int64_t micro, int64_t first_row, int64_t rows) const;
  // Rows of the held-out part: row i of `total` evenly spaced windows.
  Batch held_out(int64_t first_row, int64_t rows, int64_t total) const;

  std::string_view held_out_text() const { return std::string_view(text_).substr(split_); }
  int64_t bytes() const { return static_cast<int64_t>(text_.size()); }
  int64_t files() const { return files_; }
  uint64_t hash() const;  // the same on ranks that read the same text

 private:
  Batch windows(const std::vector<size_t>& begins) const;

  std::string text_;
  size_t split_ = 0;  // the held-out part begins here
  int64_t seq_;
  int64_t files_ = 0;
};

// Rows of one fixed global batch of random tokens, the same in every step.
Batch synthetic_batch(uint64_t seed, int64_t vocab, int64_t seq, int64_t first_row, int64_t rows, int64_t total);

}  // namespace gpt
