#include "target.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <typeinfo>
#include <utility>

import tessera.base;

namespace fuzz {
namespace {

namespace fs = std::filesystem;

/// Errors are read by people: a file with gigabytes of text must not fill a log.
constexpr std::size_t longest_error = std::size_t{1} << 16;

std::vector<const Target*>& all() {
  static std::vector<const Target*> known;
  return known;
}

[[noreturn]] void found(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::fflush(stderr);
  std::abort();
}

bool is_printable(std::string_view text) {
  return std::ranges::none_of(text, [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
  });
}

std::string contents(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// Goes away at the end of the process that has made it, and of no other.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "tessera-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      found("no folder for temporary files (TMPDIR)");
    }
    path_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

Target::Target(const char* target, Run function, std::vector<std::string> more_seeds)
    : name(target), run(function), seeds(std::move(more_seeds)) {
  seeds.insert(seeds.begin(), std::string("tests/fuzz/corpus/") + name);
  all().push_back(this);
}

const std::vector<const Target*>& targets() {
  std::ranges::sort(all(), {}, [](const Target* t) { return std::string_view(t->name); });
  return all();
}

const Target* find_target(std::string_view name) {
  const auto at =
      std::ranges::find(all(), name, [](const Target* t) { return std::string_view(t->name); });
  return at == all().end() ? nullptr : *at;
}

std::vector<std::string> seeds_of(const Target& target) {
  std::vector<std::string> inputs;
  for (const std::string& seed : target.seeds) {
    const fs::path path = fs::path(TESSERA_SOURCE_DIR) / seed;
    std::set<fs::path> files;
    if (fs::is_directory(path)) {
      for (const auto& entry : fs::directory_iterator(path)) {
        if (entry.is_regular_file()) {
          files.insert(entry.path());
        }
      }
    } else if (fs::exists(path)) {
      files.insert(path);
    } else if (seed != target.seeds.front()) {
      found(std::string(target.name) + ": the seed " + path.string() + " is missing");
    }
    for (const fs::path& file : files) {
      inputs.push_back(contents(file));
    }
  }
  return inputs;
}

std::vector<std::string> words_of(const Target& target) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR "/tests/fuzz/words/") + target.name + ".dict");
  expect(file.is_open(), "a target has no dictionary in tests/fuzz/words");
  std::vector<std::string> words;
  for (std::string line; std::getline(file, line);) {
    std::string word;
    for (std::size_t at = 1; at + 1 < line.size(); ++at) {
      const bool escapes = line[at] == '\\';
      at += escapes ? 1 : 0;
      if (escapes && line[at] == 'x') {
        word += static_cast<char>(std::stoi(line.substr(at + 1, 2), nullptr, 16));
        at += 2;
      } else {
        word += line[at];
      }
    }
    words.push_back(word);
  }
  return words;
}

std::string run(const Target& target, std::string_view input) {
  try {
    target.run(input);
    return "";
  } catch (const tessera::Error& error) {
    const std::string text = error.what();
    if (error.kind() != tessera::ErrorKind::input) {
      found(std::string(target.name) + ": an error of another kind than input: " + text);
    }
    if (text.empty() || text.size() > longest_error || !is_printable(text)) {
      found(std::string(target.name) +
            ": an error that is empty, long or not printable: " + text.substr(0, 2000));
    }
    return text;
  } catch (const std::exception& error) {
    int status = 0;
    char* const type = abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status);
    const std::string named = type != nullptr ? type : "an exception";
    std::free(type);
    found(std::string(target.name) + ": " + named + ": " + error.what());
  }
  std::abort();  // found() has done so
}

void expect(bool holds, const char* what) {
  if (!holds) {
    found(what);
  }
}

std::string folder_of(const std::string& name) {
  static const Scratch scratch;
  const fs::path path = name.empty() ? scratch.path() : scratch.path() / name;
  fs::create_directories(path);
  return path.string();
}

std::string file_of(std::string_view bytes, const std::string& name) {
  const std::string path = folder_of() + "/" + name;
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  expect(!stream.fail(), "the folder for temporary files is full (TMPDIR)");
  return path;
}

}  // namespace fuzz
