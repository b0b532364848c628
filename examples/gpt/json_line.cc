#include "gpt/json_line.h"

#include <absl/strings/str_format.h>

#include <cmath>

namespace gpt {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += absl::StrFormat("\\u%04x", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string number(double value) { return std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null"; }
std::string number(int64_t value) { return std::to_string(value); }

template <class T>
std::string list(const std::vector<T>& values) {
  std::string out;
  for (const T value : values) out += (out.empty() ? "" : ", ") + number(value);
  return "[" + out + "]";
}

}  // namespace

JsonLine& JsonLine::raw(std::string_view key, const std::string& value) {
  body_ += (body_.empty() ? "" : ", ") + quoted(key) + ": " + value;
  return *this;
}

JsonLine& JsonLine::add(std::string_view key, std::string_view value) { return raw(key, quoted(value)); }
JsonLine& JsonLine::add(std::string_view key, double value) { return raw(key, number(value)); }
JsonLine& JsonLine::add(std::string_view key, int64_t value) { return raw(key, number(value)); }
JsonLine& JsonLine::add(std::string_view key, const std::vector<double>& v) { return raw(key, list(v)); }
JsonLine& JsonLine::add(std::string_view key, const std::vector<int64_t>& v) { return raw(key, list(v)); }
JsonLine& JsonLine::add(std::string_view key, const JsonLine& object) { return raw(key, object.str()); }

}  // namespace gpt
