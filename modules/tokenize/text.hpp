// A text on its way to tokens: what it has become, and which bytes of the input each byte of it
// stands for. Plain C++.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenize {

/// Bytes of the input.
struct Source {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// A part of a text, in bytes.
struct Piece {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

class Rewriter;

/// What the steps of a tokenizer may cost for one input: its file may come from anywhere. A part of
/// the input may become 32 times as large, a large one 4 times; patterns may take so many steps.
struct Allowance {
  explicit Allowance(std::size_t input_bytes = 0);
  static std::size_t text_bytes(std::size_t input_bytes);
  std::int64_t steps = 0;  // that are left for patterns
};

/// The steps of one kind that a tokenizer may have.
constexpr std::size_t most_steps = 256;

/// A step makes a text larger than it may be. Who applied the step names it.
struct TextSizeError {
  std::size_t most = 0;
};

class Text {
 public:
  /// What patterns take their steps from; it must be set before one is applied.
  Allowance* allowance = nullptr;

  /// Valid UTF-8 that begins at byte `base` of the input. It is not copied.
  void reset(std::string_view text, std::size_t base, bool tracked);
  /// A part of another text, which stays where it is.
  void reset(const Text& whole, Piece part, bool tracked);

  std::string_view view() const { return view_; }
  std::string_view view(Piece piece) const {
    return view_.substr(piece.begin, piece.end - piece.begin);
  }
  /// The bytes of the input for one byte of the text, and for a part of it.
  Source source(std::size_t at) const {
    if (sources_ != nullptr) {
      return sources_[at];
    }
    const auto begin = static_cast<std::uint32_t>(base_ + at);
    return {begin, begin + 1};
  }
  Source source(Piece piece) const;
  /// Whether a change keeps the sources.
  bool tracked() const { return tracked_; }

 private:
  friend class Rewriter;
  std::string_view view_;
  std::size_t base_ = 0;
  bool tracked_ = false;
  std::size_t most_ = 0;             // bytes that it may have after a change
  const Source* sources_ = nullptr;  // null: byte i stands for byte base + i of the input
  std::string owned_, spare_;
  std::vector<Source> owned_sources_, spare_sources_;
};

/// Writes a text again, from its beginning to its end. Throws TextSizeError.
class Rewriter {
 public:
  explicit Rewriter(Text& text);
  std::size_t size() const { return text_.spare_.size(); }
  /// Bytes of the old text as they are.
  void keep(std::size_t begin, std::size_t end);
  /// Other bytes for these bytes of the old text.
  void put(std::string_view bytes, std::size_t begin, std::size_t end);
  void put(char32_t character, std::size_t begin, std::size_t end);
  /// The new text replaces the old one.
  void finish();

 private:
  Text& text_;
};

}  // namespace tessera::tokenize
