export module tessera.base:counted;

import :standard;

export namespace tessera {

/// A pointer to an object that counts its own references (`retain`, `release`).
template <class T>
class Counted {
 public:
  Counted() = default;
  inline explicit Counted(T* fresh) : pointer_(fresh) {}  // takes over the first reference
  inline Counted(const Counted& other) : pointer_(other.pointer_) {
    if (pointer_ != nullptr) {
      pointer_->retain();
    }
  }
  inline Counted(Counted&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  inline Counted& operator=(Counted other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  inline ~Counted() {
    if (pointer_ != nullptr) {
      pointer_->release();
    }
  }
  inline T* get() const { return pointer_; }
  inline T* operator->() const { return pointer_; }
  inline T& operator*() const& { return *pointer_; }
  T& operator*() const&& = delete;  // the object may go away with this pointer
  inline explicit operator bool() const { return pointer_ != nullptr; }
  friend inline bool operator==(const Counted& a, const Counted& b) {
    return a.pointer_ == b.pointer_;
  }
  friend inline bool operator==(const Counted& a, std::nullptr_t) { return a.pointer_ == nullptr; }

 private:
  T* pointer_ = nullptr;
};

}  // namespace tessera
