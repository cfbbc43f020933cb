export module tessera.grammar:constraint;

import tessera.base;
import :expression;
import :automaton;

// Which tokens may follow in a text.

export namespace tessera::grammar {

/// The bytes of a vocabulary's tokens, in the order in which a machine reads them: tokens that
/// begin alike are read once.
class TokenTree {
 public:
  /// By the tokens' ids; an empty text: the token is in no text.
  explicit TokenTree(const std::vector<std::string>& tokens);

  /// Some bytes below 128; `others`: and some that are not.
  struct Bytes {
    std::array<std::uint64_t, 2> ascii = {};
    bool others = false;

    inline void add(std::uint8_t byte) {
      if (byte < 128) {
        ascii[byte / 64] |= std::uint64_t{1} << (byte % 64);
      } else {
        others = true;
      }
    }
    inline bool within(const Bytes& all) const {
      return (!others || all.others) && (ascii[0] & ~all.ascii[0]) == 0 &&
             (ascii[1] & ~all.ascii[1]) == 0;
    }
  };
  struct Entry {
    std::uint8_t byte = 0;
    std::int32_t depth = 0;  // bytes before this one
    std::int32_t after = 0;  // the entry behind all that begin with this one
    // Places in ids(): of tokens that end with this byte, and of all that begin with the bytes so
    // far.
    std::int32_t first = 0;
    std::int32_t end = 0;
    std::int32_t end_of_all = 0;
    Bytes below = {};  // those that follow this one in any token
  };
  const std::vector<Entry>& entries() const { return entries_; }
  /// Tokens in the order of the tree.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  const std::string& text(std::int64_t token) const {
    return texts_.at(static_cast<std::size_t>(token));
  }
  std::int64_t size() const { return static_cast<std::int64_t>(texts_.size()); }

 private:
  std::vector<std::string> texts_;
  std::vector<std::int32_t> ids_;
  std::vector<Entry> entries_;
};

/// The tokens that may follow.
struct Allowed {
  std::vector<bool> tokens;  // by their ids
  bool any = false;          // whether there is one
};

/// A grammar over the tokens of a vocabulary. Several texts that follow it may use one, in one
/// thread: what was found for one is kept for all.
class Constraint {
 public:
  /// Nesting is at most 256 rules deep: what is deeper is not allowed. Errors (input): those of
  /// Automaton.
  Constraint(const Grammar& grammar, std::shared_ptr<const TokenTree> tokens, std::string name);
  ~Constraint();
  Constraint(const Constraint&) = delete;
  Constraint& operator=(const Constraint&) = delete;

  /// A text so far, as the stacks of the machine: their nodes, the last one first.
  struct Place {
    std::vector<std::vector<std::int32_t>> stacks = {};
    bool complete = false;  // the text may end
  };
  Place begin();
  /// After a token; none: it may not follow.
  std::optional<Place> after(const Place& place, std::int64_t token);
  /// Error (input): the grammar is so ambiguous that this takes too much time or memory.
  std::shared_ptr<const Allowed> allowed(const Place& place);
  /// Whether a text is one of the grammar.
  bool accepts(std::string_view text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::grammar
