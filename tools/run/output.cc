#include "run/output.h"

#include <unistd.h>

#include <cerrno>

namespace cleave::run {
namespace {

constexpr size_t kLongestLine = 1 << 16;

}  // namespace

std::string LinePrefixer::add(std::string_view bytes) {
  std::string out;
  pending_ += bytes;
  size_t begin = 0;
  for (;;) {
    size_t end = pending_.find_first_of("\r\n", begin);
    if (end == std::string::npos) {
      if (pending_.size() - begin < kLongestLine) break;
      end = pending_.size() - 1;
    }
    if (pending_[end] == '\r' && end + 1 < pending_.size() && pending_[end + 1] == '\n') ++end;
    const std::string_view line(pending_.data() + begin, end + 1 - begin);
    const bool closes_progress = after_return_ && line == "\n";
    if (!closes_progress) out += prefix_;
    out += line;
    if (line.back() != '\r' && line.back() != '\n') out += '\n';
    after_return_ = line.back() == '\r';
    begin = end + 1;
  }
  pending_.erase(0, begin);
  return out;
}

std::string LinePrefixer::finish() { return pending_.empty() ? "" : add("\n"); }

void Stream::pump() {
  char buffer[1 << 16];
  const ssize_t count = read(from_, buffer, sizeof(buffer));
  if (count > 0) {
    write_all(to_, prefixer_.add({buffer, static_cast<size_t>(count)}));
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    close();
  }
}

void Stream::close() {
  if (from_ < 0) return;
  ::close(from_);
  from_ = -1;
  write_all(to_, prefixer_.finish());
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace cleave::run
