export module tessera.data:data_file;

import tessera.base;

// A file that a run reads from its start to its end, and that must not change meanwhile.

export namespace tessera::data {

/// Reads by position, without a mapping: a mapped file that another program truncates kills the
/// reader (SIGBUS). The file is open only while `Handle`s of it exist, so that a run can read more
/// files than a process may have open.
class DataFile {
 public:
  /// Throws Error (input) when the file is missing, cannot be read or is not a regular file.
  explicit DataFile(std::string path);

  const std::string& path() const { return path_; }
  std::size_t size() const { return size_; }

  /// The file, open.
  class Handle {
   public:
    explicit Handle(const DataFile& file);
    Handle(Handle&& other) noexcept;
    Handle& operator=(Handle&& other) noexcept;
    ~Handle();
    /// Fills `out` with the bytes from `offset` on. Error (input) that names the file when it has
    /// changed since the DataFile was made: truncated, written to, or replaced.
    void read(const DataFile& file, std::size_t offset, std::span<std::byte> out) const;

   private:
    int descriptor_ = -1;
  };

 private:
  void check_unchanged(int descriptor) const;

  std::string path_;
  std::size_t size_ = 0;
  // Tell the file apart from a later version of it.
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
  std::int64_t modified_seconds_ = 0;
  std::int64_t modified_nanoseconds_ = 0;
};

/// Calls `take` with the bytes before `end`, piece by piece. Errors (input): those of Handle::read.
void for_each_piece(const DataFile& file, std::size_t end,
                    const std::function<void(std::span<const std::byte>)>& take);

}  // namespace tessera::data
