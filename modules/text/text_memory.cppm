export module tessera.text:text_memory;

import tessera.base;
import tessera.nn;
import :page_table;

// Where the keys, values and states of texts are, within a budget of bytes.

export namespace tessera::text {

/// Bytes that a rank keeps of a text.
struct TextBytes {
  std::int64_t position = 0;  // keys and values of a token, in all layers
  std::int64_t state = 0;     // what recurrent layers pass on; 0: there are none
};

/// Gives texts places for what a model keeps of them. Keys and values of equal beginnings are kept
/// once (PageTable); a state is that of one length, so of models with recurrent layers a text that
/// has ended is continued by one whose beginning it is.
class TextMemory {
 public:
  /// `most`: texts at the same time. Error (input): `memory` has no room for one text of a page.
  TextMemory(const TextBytes& bytes, std::int64_t memory, std::int64_t most);

  struct Text {
    PageTable::Text pages = {};
    std::int64_t state = -1;  // -1: there are none
    std::int64_t kept = 0;    // tokens whose keys, values and state are there from the beginning
  };
  /// A text that begins, and may have `expected` positions in the end; none: as many as can be have
  /// not ended. It has nothing of texts of another `kind` (PageTable::begin).
  std::optional<Text> begin(std::span<const std::int64_t> tokens, std::int64_t expected,
                            std::int64_t kind = 0);
  /// Makes room for so many of its positions. False: there is too little.
  bool reserve(Text& text, std::int64_t positions);
  /// Says that the first `computed` of its tokens have been computed.
  void know(Text& text, std::span<const std::int64_t> tokens, std::int64_t computed);
  /// The text has ended, with so many tokens computed: what is kept of it may be continued.
  void release(Text& text, std::span<const std::int64_t> tokens, std::int64_t computed);
  /// Whether texts that begin alike can have the keys and values of their beginning once.
  bool shares_pages() const { return states_.empty(); }
  /// Forgets all that is kept of texts that have ended.
  void forget();
  /// The next `count` tokens of a text after `first` others.
  nn::RaggedRow row(const Text& text, std::int64_t first, std::int64_t count) const;

  /// Positions for which there is room beside those of texts that have not ended.
  std::int64_t free_positions() const;
  /// The positions that a text can have.
  std::int64_t longest() const { return pages_.most() * PageTable::page_size; }
  /// Places of positions, and of states, that there are so far.
  std::int64_t places() const { return pages_.room() * PageTable::page_size; }
  std::int64_t states() const;
  const PageTable& pages() const { return pages_; }

 private:
  struct State {
    bool used = false;
    std::int64_t kind = 0;                  // of the text that has it, or has ended with it
    std::vector<std::int64_t> tokens = {};  // of the one that has ended
    PageTable::Text pages = {};
    std::int64_t last_used = 0;
  };
  State* oldest_unused(bool with_pages = false);
  void drop(State& state);

  PageTable pages_;
  std::vector<State> states_;
  std::int64_t uses_ = 0;
};

}  // namespace tessera::text
