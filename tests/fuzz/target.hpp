// Fuzz targets: each tries a parser with bytes that somebody else may have written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

/// A parser that is tried with any bytes. It may refuse them by an Error of kind input, and what it
/// takes must have the properties that `run` checks (`expect`).
struct Target {
  using Run = void (*)(std::string_view input);
  /// `more_seeds`: files and folders of the source tree, besides tests/fuzz/corpus/NAME.
  Target(const char* target, Run function, std::vector<std::string> more_seeds = {});
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  const char* name;
  Run run;
  std::vector<std::string> seeds;
};

/// All targets of this program.
const std::vector<const Target*>& targets();
/// The target of this name; null: there is none.
const Target* find_target(std::string_view name);
/// The contents of its seeds, in the order of their paths.
std::vector<std::string> seeds_of(const Target& target);
/// What its format consists of, for changes: tests/fuzz/words/NAME.dict, a dictionary of libFuzzer.
std::vector<std::string> words_of(const Target& target);

/// Runs the target. Ends the process (abort) with a text on stderr where it finds something:
/// another exception than an Error of kind input, an error whose text is not printable, a property
/// that does not hold. Returns why the input was refused; empty: it was taken.
std::string run(const Target& target, std::string_view input);

/// Ends the process as `run` does unless `holds`.
void expect(bool holds, const char* what);

/// A file in a folder of this process, with these bytes; returns its path. The folder goes away
/// with the process.
std::string file_of(std::string_view bytes, const std::string& name = "input");
/// That folder, or one in it.
std::string folder_of(const std::string& name = "");

/// The input with some random changes; deterministic for each value of `random`.
std::string mutated(std::string input, const std::vector<std::string>& words, std::uint64_t random);

}  // namespace fuzz
