// Bytes of text files as training data: windows drawn deterministically, the last 5 % held out.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpt/batch.h"

namespace gpt {

struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a training window depends on, besides the text.
struct WindowKey {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t micro_batch = 0;
  int64_t rank = 0;  // data rank
};

class TextData {
 public:
  TextData() = default;
  // paths: files and folders (all source and text files below, in the order of their paths). Throws
  // DataError with what was expected and what was found: a missing path, an empty file, too little text
  // for windows of seq + 1 bytes.
  static TextData load(const std::vector<std::string>& paths, int64_t seq);

  // Rows are keyed by rank * rows + row: one process with the rows of all ranks sees what they see.
  Batch training_batch(const WindowKey& key, int64_t rows) const;
  // Batch `index` of `count` that cover the held-out part evenly.
  Batch held_out_batch(int64_t index, int64_t count, int64_t rows) const;
  std::string held_out_text(size_t bytes) const { return text_.substr(split_, bytes); }

  int64_t files() const { return files_; }
  int64_t training_bytes() const { return static_cast<int64_t>(split_); }
  int64_t held_out_bytes() const { return static_cast<int64_t>(text_.size() - split_); }

 private:
  void add_file(const std::string& path);
  Batch windows(const std::vector<size_t>& begins) const;

  std::string text_;
  size_t split_ = 0;  // the held-out part begins here
  int64_t seq_ = 0;
  int64_t files_ = 0;
};

}  // namespace gpt
