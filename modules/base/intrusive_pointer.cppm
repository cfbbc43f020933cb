export module tessera.base:intrusive_pointer;

import :standard;

export namespace tessera {

/// A pointer to an object that counts its own references (`retain`, `release`).
template <class T>
class IntrusivePointer {
 public:
  IntrusivePointer() = default;
  inline explicit IntrusivePointer(T* fresh) : pointer_(fresh) {}  // takes over the first reference
  inline IntrusivePointer(const IntrusivePointer& other) : pointer_(other.pointer_) {
    if (pointer_ != nullptr) {
      pointer_->retain();
    }
  }
  inline IntrusivePointer(IntrusivePointer&& other) noexcept
      : pointer_(std::exchange(other.pointer_, nullptr)) {}
  inline IntrusivePointer& operator=(IntrusivePointer other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  inline ~IntrusivePointer() {
    if (pointer_ != nullptr) {
      pointer_->release();
    }
  }
  inline T* get() const { return pointer_; }
  inline T* operator->() const { return pointer_; }
  inline T& operator*() const& { return *pointer_; }
  T& operator*() const&& = delete;  // the object may go away with this pointer
  inline explicit operator bool() const { return pointer_ != nullptr; }
  friend inline bool operator==(const IntrusivePointer& a, const IntrusivePointer& b) {
    return a.pointer_ == b.pointer_;
  }
  friend inline bool operator==(const IntrusivePointer& a, std::nullptr_t) {
    return a.pointer_ == nullptr;
  }

 private:
  T* pointer_ = nullptr;
};

}  // namespace tessera
