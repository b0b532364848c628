// Puts "[rank] " before each line that a rank writes.
#pragma once

#include <string>
#include <string_view>

namespace cleave::run {

// Bytes of one stream in, whole prefixed lines out. A line ends with '\n' or, for progress bars, '\r'.
class LinePrefixer {
 public:
  explicit LinePrefixer(int rank) { prefix_.append("[").append(std::to_string(rank)).append("] "); }

  // The lines that are complete now, prefixed.
  std::string add(std::string_view bytes);
  // What is left at the end of the stream, as a line.
  std::string finish();

 private:
  std::string prefix_;
  std::string pending_;
  bool after_return_ = false;  // the last line ended with '\r'
};

// One pipe of a rank, on its way to this process's stdout or stderr.
class Stream {
 public:
  Stream(int rank, int from, int to) : prefixer_(rank), from_(from), to_(to) {}

  int fd() const { return from_; }  // -1 once closed
  // Copies what can be read now; closes at end of file.
  void pump();
  void close();

 private:
  LinePrefixer prefixer_;
  int from_, to_;
};

// Writes everything, as far as the receiver still takes it.
void write_all(int fd, std::string_view bytes);

}  // namespace cleave::run
