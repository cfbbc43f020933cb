export module tessera.program:index;

import tessera.base;

export namespace tessera {

/// The number of a thing of one kind, which is not a number of anything else. Without one: of
/// nothing.
template <class Kind>
struct Index {
  int number = -1;

  constexpr Index() = default;
  explicit constexpr Index(int at) : number(at) {}
  /// Otherwise it is that of nothing.
  constexpr bool exists() const { return number >= 0; }
  friend constexpr std::strong_ordering operator<=>(Index, Index) = default;
};

/// Kinds of things that follow one another, so that there is a distance between two of them.
template <class Kind>
concept InOrder = Kind::in_order;

/// The thing that is so many further, or before it.
template <InOrder Kind>
constexpr Index<Kind> operator+(Index<Kind> index, int further) {
  return Index<Kind>(index.number + further);
}
template <InOrder Kind>
constexpr Index<Kind> operator-(Index<Kind> index, int back) {
  return Index<Kind>(index.number - back);
}
/// How many steps lead from the second one to the first one.
template <InOrder Kind>
constexpr int operator-(Index<Kind> to, Index<Kind> from) {
  return to.number - from.number;
}
template <InOrder Kind>
constexpr Index<Kind>& operator++(Index<Kind>& index) {
  return index = index + 1;
}
template <InOrder Kind>
constexpr Index<Kind>& operator--(Index<Kind>& index) {
  return index = index - 1;
}

/// The indices from one on, up to another one that is not among them. None where that one is not
/// after it.
template <class Key>
class Indices {
 public:
  class Iterator {
   public:
    using value_type = Key;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(int at) : at_(at) {}
    Key operator*() const { return Key(at_); }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(at_++); }
    bool operator==(const Iterator&) const = default;

   private:
    int at_ = 0;
  };

  Indices(Key begin, Key end) : begin_(begin.number), end_(std::max(begin, end).number) {}
  Iterator begin() const { return begin_; }
  Iterator end() const { return end_; }

 private:
  Iterator begin_;
  Iterator end_;
};

/// One value for each thing of a kind.
template <class Key, class T>
class Table {
 public:
  using Values = std::vector<T>;

  Table() = default;
  explicit Table(std::size_t count, const T& value = T()) : values_(count, value) {}
  explicit Table(Values values) : values_(std::move(values)) {}

  decltype(auto) operator[](Key key) { return values_[static_cast<std::size_t>(key.number)]; }
  decltype(auto) operator[](Key key) const { return values_[static_cast<std::size_t>(key.number)]; }
  std::size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  bool contains(Key key) const { return key.exists() && key < next(); }
  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  /// Adds one, and returns its key.
  Key add(T value) {
    values_.push_back(std::move(value));
    return last();
  }
  /// Adds values, or drops the last ones.
  void resize(std::size_t count) { values_.resize(count); }
  void clear() { values_.clear(); }

  /// All of them, in their order.
  Indices<Key> keys() const { return {Key(0), next()}; }
  /// None of an empty table.
  Key last() const { return Key(static_cast<int>(size()) - 1); }
  /// That of the value that is added next.
  Key next() const { return Key(static_cast<int>(size())); }
  Key key_of(typename Values::const_iterator value) const {
    return Key(static_cast<int>(value - values_.begin()));
  }

 private:
  Values values_;
};

/// A tensor of a program. That of nothing: an absent operand, a result that nobody needs.
struct TensorKind;
using TensorIndex = Index<TensorKind>;
template <class T>
using ByTensor = Table<TensorIndex, T>;

/// A place is that of an instruction, counted through all sections. One after the last instruction
/// is the end.
struct PlaceKind {
  static constexpr bool in_order = true;
};
using PlaceIndex = Index<PlaceKind>;
template <class T>
using ByPlace = Table<PlaceIndex, T>;

/// Where instructions come from: see Program::scopes.
struct ScopeKind;
using ScopeIndex = Index<ScopeKind>;
template <class T>
using ByScope = Table<ScopeIndex, T>;

/// Memory that tensors of a program share: see Shadow.
struct MemoryKind;
using MemoryIndex = Index<MemoryKind>;
template <class T>
using ByMemory = Table<MemoryIndex, T>;

}  // namespace tessera
