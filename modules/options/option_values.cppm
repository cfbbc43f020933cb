export module tessera.options:option_values;

import tessera.base;

// What a value may be that a person writes: ranges of numbers, words of enumerations. Keys of a
// config and options of plugins both follow these.
export namespace tessera {

/// Of a range that is open at an end.
inline constexpr double no_limit = __builtin_huge_val();

/// Allowed numbers, for a number or for each entry of a list of numbers.
struct Range {
  double low = -no_limit;
  double high = no_limit;
  bool low_open = false;
  bool high_open = false;
};
/// Whether the range has the value; NaN and infinities are in none.
bool contains(const Range& range, double value);
/// "at least 0 and less than 1", "at least 1" or "" where every number is allowed.
std::string describe(const Range& range);
/// `what`, with the range where there is one: "an integer at least 1".
std::string expected_number(const std::string& what, const Range& range);

/// "\"a\" or \"b\"".
std::string expected_words(std::span<const std::string> words);

/// A field of an enumeration, by its words.
class WordField {
 public:
  /// Words and their values, in the order of the documentation.
  template <class E>
  using Words = std::vector<std::pair<std::string, E>>;

  /// Both must outlive this.
  template <class E>
  WordField(E& field, const Words<E>& words) {
    for (const auto& [word, value] : words) {
      words_.push_back(word);
    }
    word_ = [&field, &words] {
      for (const auto& [word, value] : words) {
        if (value == field) {
          return word;
        }
      }
      return std::string("?");  // no value of the enumeration
    };
    set_ = [&field, &words](std::size_t number) { field = words.at(number).second; };
  }

  const std::vector<std::string>& words() const { return words_; }
  std::string word() const { return word_(); }
  /// False: there is no such word, and nothing is set.
  bool set(std::string_view word) const;

 private:
  std::vector<std::string> words_;
  std::function<std::string()> word_;
  std::function<void(std::size_t)> set_;
};

}  // namespace tessera
