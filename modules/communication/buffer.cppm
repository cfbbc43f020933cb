export module tessera.communication:buffer;

import tessera.base;

export namespace tessera::collective {

class WorldState;

/// Memory of this rank that every rank of the world can read: collectives whose source is in one
/// move it without a copy-in. Zero-filled, aligned to 4096 bytes. Move-only; freed when it is
/// destroyed and all peers have finished reading it. It may outlive the World.
class SharedBuffer {
 public:
  SharedBuffer() = default;
  SharedBuffer(std::shared_ptr<WorldState> state, std::uint64_t offset, std::size_t bytes);
  SharedBuffer(SharedBuffer&& other) noexcept;
  SharedBuffer& operator=(SharedBuffer&& other) noexcept;
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;
  ~SharedBuffer();

  inline std::byte* data() const { return data_; }
  inline std::size_t bytes() const { return bytes_; }

 private:
  void release() noexcept;

  std::shared_ptr<WorldState> state_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tessera::collective
