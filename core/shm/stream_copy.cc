#include "core/shm/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cleave::shm {

#if defined(__x86_64__)
void copy_streaming(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const size_t head = (64 - reinterpret_cast<uintptr_t>(out) % 64) % 64;
  if (bytes < head + 64) {
    std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(out, in, head);
  size_t at = head;
  for (; at + 64 <= bytes; at += 64) {  // a whole line at a time
    const auto load = [&](size_t i) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at + 16 * i));
    };
    const __m128i a = load(0), b = load(1), c = load(2), d = load(3);
    auto* line = reinterpret_cast<__m128i*>(out + at);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  _mm_sfence();
  std::memcpy(out + at, in + at, bytes - at);
}
#else
void copy_streaming(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace cleave::shm
