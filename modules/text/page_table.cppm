export module tessera.text:page_table;

import tessera.base;

// Memory for keys and values, in pages that texts with equal beginnings share.

export namespace tessera::text {

/// Which pages of a fixed number of positions hold which tokens. A page may belong to several texts
/// that begin alike; one that belongs to none is kept with its tokens until another needs it, the
/// one that was used least recently first. Knows no memory: its places are numbers.
class PageTable {
 public:
  static constexpr std::int64_t page_size = 16;  // positions

  /// `most`: pages that there may be.
  explicit PageTable(std::int64_t most) : most_(most) {}

  /// The pages of one text, in the order of its positions.
  struct Text {
    std::vector<std::int64_t> pages = {};
    std::int64_t known = 0;       // pages whose tokens were said by know()
    std::uint64_t beginning = 0;  // kind and tokens of these: equal ones have equal numbers
    std::int64_t expected = 0;    // pages that it may have in the end
    std::int64_t run = -1;        // the first page of its last run of pages
  };

  /// A new text, with the pages that are kept of its tokens; its last token is in none of them. Its
  /// other pages follow one another where that is possible, for `expected` positions. Texts of
  /// another `kind` share none: the same tokens have other keys and values.
  Text begin(std::span<const std::int64_t> tokens, std::int64_t expected, std::int64_t kind = 0);
  /// Gives a text pages for so many positions. False: too few are left, and it has those before.
  bool reserve(Text& text, std::int64_t positions);
  /// Says that the first `computed` of a text's tokens have keys and values now.
  void know(Text& text, std::span<const std::int64_t> tokens, std::int64_t computed);
  /// The text needs its pages no more.
  void release(Text& text);
  /// Forgets the tokens of pages that belong to no text.
  void forget();

  /// Pages that there are so far: the memory grows with them.
  std::int64_t room() const;
  std::int64_t most() const { return most_; }
  /// Pages that belong to a text.
  std::int64_t used() const { return used_; }

 private:
  struct Page {
    std::int64_t texts = 0;       // to which it belongs
    std::uint64_t number = 0;     // of its tokens and those before; 0: not known
    std::uint64_t last_used = 0;  // of a page that belongs to none
    std::pair<std::uint64_t, std::vector<std::int64_t>> tokens = {};
  };
  /// A page that belongs to no text, after those of the text where that is possible. None: -1.
  std::int64_t take(Text& text);
  std::int64_t begin_of_run(std::int64_t count) const;
  void grow(std::int64_t count);
  void free(std::int64_t page);
  void drop_oldest();
  Page& at(std::int64_t page) { return pages_[static_cast<std::size_t>(page)]; }

  std::int64_t most_;
  std::int64_t used_ = 0;
  std::uint64_t numbers_ = 0;
  std::uint64_t uses_ = 0;
  std::vector<Page> pages_;
  std::map<std::int64_t, std::int64_t> gaps_;  // free pages: the first of a gap, and how many
  std::map<std::int64_t, std::int64_t> runs_;  // of texts: the first page, and the end of its room
  /// The page with these tokens after those with this number.
  std::map<std::pair<std::uint64_t, std::vector<std::int64_t>>, std::int64_t> by_tokens_;
  std::map<std::uint64_t, std::int64_t> unused_;  // kept pages by their last use
};

}  // namespace tessera::text
