export module tessera.tensor:attributes;

import tessera.base;
import :number;

export namespace tessera {

/// Identifies a list of arguments by their names and types. 0: no arguments.
using ArgumentsType = std::uint64_t;

/// The arguments of one call, as words: the static ones decide shapes and layouts and belong to the
/// key under which the distributed path is cached; the dynamic ones do not. Made from the
/// operator's aggregate (`call(op, {x}, SoftmaxArgs{.dim = 1})`), read back by
/// Call::args<SoftmaxArgs>(). They hold the Specs among them.
class Attributes {
 public:
  static constexpr int dynamic_room = 8;  // words

  Attributes() = default;
  template <class A>
    requires(__is_aggregate(A) && !__is_array(A))
  Attributes(const A& arguments);  // NOLINT(google-explicit-constructor)
  inline Attributes(const Attributes& other) : words_(other.words_) {
    if (words_.specs != 0) [[unlikely]] {
      retain_specs();
    }
  }
  inline Attributes& operator=(const Attributes& other) {
    if (this != &other) {
      std::destroy_at(this);
      std::construct_at(this, other);
    }
    return *this;
  }
  inline ~Attributes() {
    if (words_.specs != 0) [[unlikely]] {
      release_specs();
    }
  }

  inline ArgumentsType type() const { return words_.type; }
  inline std::span<const std::int64_t> fixed() const {
    return {words_.fixed, static_cast<std::size_t>(words_.fixed_count)};
  }
  inline std::span<const std::int64_t> dynamic() const {
    return {words_.dynamic, static_cast<std::size_t>(words_.dynamic_count)};
  }
  /// Replaces the dynamic arguments by those of `other`.
  inline Attributes& take_dynamic(const Attributes& other) {
    words_.dynamic_count = other.words_.dynamic_count;
    words_.traced = other.words_.traced;
    for (int i = 0; i < words_.dynamic_count; ++i) {
      words_.dynamic[i] = other.words_.dynamic[i];
    }
    return *this;
  }
  /// Whether a dynamic argument follows from a variable of the step that is being recorded. It is
  /// no part of the arguments: calls that differ in it alone are equal.
  inline bool is_traced() const { return words_.traced != 0; }
  /// Where word number `word` of the dynamic arguments comes from; 0: it is a constant.
  SourceId traced_source(int word) const;
  inline void drop_sources() { words_.traced = 0; }
  friend inline bool operator==(const Attributes& a, const Attributes& b) {
    const auto same = [](std::span<const std::int64_t> x, std::span<const std::int64_t> y) {
      return std::equal(x.begin(), x.end(), y.begin(), y.end());
    };
    return a.type() == b.type() && same(a.fixed(), b.fixed()) && same(a.dynamic(), b.dynamic());
  }

 private:
  friend struct ArgumentWords;

  static constexpr int room = 24;
  inline void check_room(int count) const {
    if (words_.fixed_count + count > room) [[unlikely]] {
      overflow();
    }
  }
  [[noreturn]] static void overflow();
  void trace(int word, SourceId source);
  void retain_specs() const;
  void release_specs() const;

  struct Words {
    std::int64_t fixed[room];  // only the first fixed_count hold values
    std::int64_t dynamic[dynamic_room];
    ArgumentsType type = 0;
    int fixed_count = 0;
    int dynamic_count = 0;
    std::uint32_t specs = 0;   // bit i: fixed[i] is the address of a Spec, which is held
    std::uint32_t traced = 0;  // the sources of dynamic arguments, by the thread's number; 0: none
  };
  Words words_;
};

}  // namespace tessera
