export module tessera.program:index;

import tessera.base;

export namespace tessera::graph {

/// The number of a thing of one kind in a program, which is no number of anything else.
template <class Kind>
struct Index {
  int number = -1;

  constexpr Index() = default;
  explicit constexpr Index(int at) : number(at) {}
  /// Otherwise it is that of nothing.
  constexpr bool exists() const { return number >= 0; }
  friend constexpr bool operator==(Index a, Index b) { return a.number == b.number; }
  friend constexpr bool operator<(Index a, Index b) { return a.number < b.number; }
};

/// One value for each thing of a kind.
template <class Key, class T>
class Table {
 public:
  using Values = std::vector<T>;

  Table() = default;
  explicit Table(std::size_t count, const T& value = T()) : values_(count, value) {}

  decltype(auto) operator[](Key key) { return values_[static_cast<std::size_t>(key.number)]; }
  decltype(auto) operator[](Key key) const { return values_[static_cast<std::size_t>(key.number)]; }
  std::size_t size() const { return values_.size(); }
  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  /// Adds one, and returns its key.
  Key add(T value) {
    values_.push_back(std::move(value));
    return Key(static_cast<int>(values_.size()) - 1);
  }

  class Keys {
   public:
    class Iterator {
     public:
      explicit Iterator(int at) : at_(at) {}
      Key operator*() const { return Key(at_); }
      Iterator& operator++() {
        ++at_;
        return *this;
      }
      bool operator!=(const Iterator& other) const { return at_ != other.at_; }

     private:
      int at_;
    };
    explicit Keys(std::size_t count) : count_(count) {}
    Iterator begin() const { return Iterator(0); }
    Iterator end() const { return Iterator(static_cast<int>(count_)); }

   private:
    std::size_t count_;
  };
  /// All of them, in their order.
  Keys keys() const { return Keys(size()); }

 private:
  Values values_;
};

/// Memory that tensors of a program share: see Shadow.
struct MemoryKind;
using MemoryIndex = Index<MemoryKind>;
template <class T>
using ByMemory = Table<MemoryIndex, T>;

}  // namespace tessera::graph
