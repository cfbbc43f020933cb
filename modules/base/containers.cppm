export module tessera.base:containers;

import :standard;
import :error;

export namespace tessera {

/// The largest number of dims a tensor has.
inline constexpr int max_dims = 8;

/// A short list of extents, strides, dims or offsets: no allocation, at most max_dims entries.
class Dims {
 public:
  Dims() = default;
  inline Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span(values.begin(), values.size())) {}
  inline explicit Dims(std::span<const std::int64_t> values) {
    check_size(values.size());
    size_ = static_cast<int>(values.size());
    std::copy(values.begin(), values.end(), data_);
  }
  /// `count` entries of `value`.
  static inline Dims filled(int count, std::int64_t value) {
    Dims d;
    d.resize(count, value);
    return d;
  }

  inline int size() const { return size_; }
  inline bool empty() const { return size_ == 0; }
  inline std::int64_t* begin() { return data_; }
  inline std::int64_t* end() { return data_ + size_; }
  inline const std::int64_t* begin() const { return data_; }
  inline const std::int64_t* end() const { return data_ + size_; }
  inline std::int64_t& operator[](int i) { return data_[i]; }
  inline std::int64_t operator[](int i) const { return data_[i]; }
  inline std::int64_t& back() { return data_[size_ - 1]; }
  inline std::int64_t back() const { return data_[size_ - 1]; }
  inline std::int64_t& front() { return data_[0]; }
  inline std::int64_t front() const { return data_[0]; }
  inline void push_back(std::int64_t value) {
    check_size(static_cast<std::size_t>(size_) + 1);
    data_[size_++] = value;
  }
  inline void pop_back() { --size_; }
  inline void resize(int count, std::int64_t value = 0) {
    check_size(static_cast<std::size_t>(count));
    for (int i = size_; i < count; ++i) {
      data_[i] = value;
    }
    size_ = count;
  }
  inline void insert(int at, std::int64_t value) {
    push_back(0);
    std::copy_backward(data_ + at, data_ + size_ - 1, data_ + size_);
    data_[at] = value;
  }
  inline void erase(int at) {
    std::copy(data_ + at + 1, data_ + size_, data_ + at);
    --size_;
  }
  inline bool contains(std::int64_t value) const {
    return std::find(begin(), end(), value) != end();
  }
  inline std::span<const std::int64_t> span() const {
    return {data_, static_cast<std::size_t>(size_)};
  }
  /// The product of all entries; 1 for none. Not checked: of the shape of a tensor that exists, or
  /// of one that was checked (checked_product).
  inline std::int64_t product() const {
    std::int64_t p = 1;
    for (int i = 0; i < size_; ++i) {
      p *= data_[i];
    }
    return p;
  }
  friend inline bool operator==(const Dims& a, const Dims& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  static inline void check_size(std::size_t count) {
    if (count > static_cast<std::size_t>(max_dims)) [[unlikely]] {
      too_many(count);
    }
  }
  [[noreturn]] static void too_many(std::size_t count);

  std::int64_t data_[max_dims];  // only the first size_ entries hold values
  int size_ = 0;
};

/// "[2, 3]".
std::string to_string(const Dims& dims);

/// `dim` counted from the front; negative counts from the back. `what` begins the error's text.
int wrap_dim(std::int64_t dim, int count, const char* what);

/// Contiguous (row-major) strides of a shape, in elements.
Dims contiguous_strides(const Dims& shape);

// Sizes that are computed from what a user or a file says. `what` begins the error's text.

/// The number of elements of a shape. Errors: a negative extent; more than 2^62 elements (extents
/// of 0 are counted as 1, so that every stride is a number too).
std::int64_t checked_product(const Dims& shape, std::string_view what);
/// a + b and a * b. Errors: the result is not an int64.
std::int64_t checked_add(std::int64_t a, std::int64_t b, std::string_view what);
std::int64_t checked_multiply(std::int64_t a, std::int64_t b, std::string_view what);
/// `value`, a whole number that was computed in double. Errors: not a number, or not an int64.
std::int64_t checked_integer(double value, std::string_view what);

/// A vector whose first N entries live in place.
template <class T, std::size_t N>
class InlineVector {
 public:
  InlineVector() = default;
  inline explicit InlineVector(std::size_t count) { resize(count); }
  inline InlineVector(std::initializer_list<T> values) {
    reserve(values.size());
    for (const T& v : values) {
      push_back(v);
    }
  }
  inline InlineVector(const InlineVector& other) {
    reserve(other.size_);
    for (const T& v : other) {
      push_back(v);
    }
  }
  inline InlineVector(InlineVector&& other) noexcept { take(std::move(other)); }
  inline InlineVector& operator=(const InlineVector& other) {
    if (this != &other) {
      clear();
      reserve(other.size_);
      for (const T& v : other) {
        push_back(v);
      }
    }
    return *this;
  }
  inline InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) {
      release();
      take(std::move(other));
    }
    return *this;
  }
  inline ~InlineVector() { release(); }

  inline std::size_t size() const { return size_; }
  inline bool empty() const { return size_ == 0; }
  inline T* data() { return data_; }
  inline const T* data() const { return data_; }
  inline T* begin() { return data_; }
  inline T* end() { return data_ + size_; }
  inline const T* begin() const { return data_; }
  inline const T* end() const { return data_ + size_; }
  inline T& operator[](std::size_t i) { return data_[i]; }
  inline const T& operator[](std::size_t i) const { return data_[i]; }
  inline T& front() { return data_[0]; }
  inline const T& front() const { return data_[0]; }
  inline T& back() { return data_[size_ - 1]; }
  inline const T& back() const { return data_[size_ - 1]; }
  inline operator std::span<const T>() const { return {data_, size_}; }
  inline operator std::span<T>() { return {data_, size_}; }

  inline void reserve(std::size_t capacity) {
    if (capacity > capacity_) {
      grow(capacity);
    }
  }
  template <class... A>
  inline T& emplace_back(A&&... args) {
    if (size_ == capacity_) {
      T value(std::forward<A>(args)...);  // before growing: args may refer into this vector
      grow(2 * capacity_);
      T* p = std::construct_at(data_ + size_, std::move(value));
      ++size_;
      return *p;
    }
    T* p = std::construct_at(data_ + size_, std::forward<A>(args)...);
    ++size_;
    return *p;
  }
  inline void push_back(const T& value) { emplace_back(value); }
  inline void push_back(T&& value) { emplace_back(std::move(value)); }
  inline void pop_back() { std::destroy_at(data_ + --size_); }
  inline void resize(std::size_t count) {
    reserve(count);
    while (size_ > count) {
      pop_back();
    }
    while (size_ < count) {
      emplace_back();
    }
  }
  inline void clear() {
    std::destroy_n(data_, size_);
    size_ = 0;
  }
  friend inline bool operator==(const InlineVector& a, const InlineVector& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  inline T* inline_data() { return reinterpret_cast<T*>(storage_); }
  inline void grow(std::size_t capacity) {
    T* fresh = static_cast<T*>(::operator new(capacity * sizeof(T), std::align_val_t(alignof(T))));
    std::uninitialized_move_n(data_, size_, fresh);
    std::destroy_n(data_, size_);
    free_heap();
    data_ = fresh;
    capacity_ = capacity;
  }
  inline void free_heap() {
    if (data_ != inline_data()) {
      ::operator delete(data_, std::align_val_t(alignof(T)));
    }
  }
  inline void release() {
    clear();
    free_heap();
    data_ = inline_data();
    capacity_ = N;
  }
  inline void take(InlineVector&& other) {
    if (other.data_ != other.inline_data()) {
      data_ = std::exchange(other.data_, other.inline_data());
      size_ = std::exchange(other.size_, 0);
      capacity_ = std::exchange(other.capacity_, N);
      return;
    }
    std::uninitialized_move_n(other.data_, other.size_, data_);
    size_ = other.size_;
    other.clear();
  }

  alignas(T) std::byte storage_[N * sizeof(T)];
  T* data_ = inline_data();
  std::size_t size_ = 0;
  std::size_t capacity_ = N;
};

/// Mixes `value` into `seed` (the finaliser of splitmix64 over their combination).
inline constexpr std::uint64_t hash_combine(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t x = seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace tessera
