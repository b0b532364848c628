// Builds one line of JSON.
//
//   JsonLine line;
//   line.add("ranks", 2).add("losses", std::vector<double>{1.5, 1.25});
//   out << line.str() << '\n';        // {"ranks": 2, "losses": [1.5, 1.25]}
//
// Numbers are printed with 17 digits, so that they read back unchanged; what is not finite is null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

class JsonLine {
 public:
  JsonLine& add(std::string_view key, std::string_view value);
  JsonLine& add(std::string_view key, const char* value) { return add(key, std::string_view(value)); }
  JsonLine& add(std::string_view key, double value);
  JsonLine& add(std::string_view key, int64_t value);
  JsonLine& add(std::string_view key, int value) { return add(key, static_cast<int64_t>(value)); }
  JsonLine& add(std::string_view key, const std::vector<double>& values);
  JsonLine& add(std::string_view key, const std::vector<int64_t>& values);
  JsonLine& add(std::string_view key, const JsonLine& object);

  std::string str() const { return "{" + body_ + "}"; }

 private:
  JsonLine& raw(std::string_view key, const std::string& value);
  std::string body_;
};

}  // namespace gpt
