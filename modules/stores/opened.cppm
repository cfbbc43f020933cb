export module tessera.stores:opened;

import tessera.base;
import :address;
import :store;
import :store_error;

export namespace tessera::stores {

/// How often a request is tried that fails for a reason that may pass. The pause doubles from the
/// first to the longest, with a share at random, and is at least what the store asks for
/// (Retry-After). Bytes that arrive between two failures of a read begin the count of tries again.
struct RetryPolicy {
  int tries = 8;
  double first_pause = 0.5;  // seconds
  double longest_pause = 30;
  double longest_asked = 300;  // of a Retry-After; a store that wants more has failed
  double all_seconds = 600;    // of one operation without progress; then its last failure is thrown
};

/// What every use of a store keeps to.
struct StoreRules {
  RequestLimits limits = {};
  RetryPolicy retries = {};
  std::size_t most_listed = 1'000'000;  // objects of a list; more is an error
};

/// What has happened in a store, for tests and reports.
struct StoreCounts {
  std::uint64_t requests = 0;
  std::uint64_t repeated = 0;  // after a failure that might pass
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
};

/// A store at an address, read within the rules. Names are relative to the address: with
/// "s3://bucket/a", "b/c" is the object a/b/c, and "" is the object a itself. Functions may be
/// called by several threads at the same time. Errors of all: StoreError that begins with the
/// address of what it is about; a failure that may pass is thrown when the rules' tries are over,
/// and says how many there were.
class OpenStore {
 public:
  /// Errors (input): no plugin has the scheme (the error names those that are there, and how to get
  /// the others); those of StoreScheme::open.
  explicit OpenStore(Address address, StoreRules rules = {});
  OpenStore(OpenStore&&) noexcept;
  OpenStore& operator=(OpenStore&&) = delete;
  OpenStore(const OpenStore&) = delete;
  OpenStore& operator=(const OpenStore&) = delete;
  ~OpenStore();

  const Address& address() const;
  const StoreRules& rules() const;
  StoreCounts counts() const;
  /// Whether the address names everything of its store (a bucket, a repository).
  bool is_whole() const;
  /// Whether list() is possible.
  bool has_lists() const;

  ObjectFacts facts(const std::string& name);
  /// All objects below the folder, sorted by name; names are relative to the address, as
  /// everywhere. Errors: also wrong_answer for names that check_object_name refuses or that are
  /// there twice, and for more than most_listed.
  std::vector<ListedObject> list(const std::string& folder = "");
  /// Fills `out` with the bytes from `begin` on. Error: also `changed`, when the object is not the
  /// one of `facts`.
  void read(const std::string& name, const ObjectFacts& facts, std::uint64_t begin,
            std::span<std::byte> out);
  /// The bytes of the range in order, in pieces as they arrive; each byte once, whatever is tried
  /// again.
  void read(const std::string& name, const ObjectFacts& facts, ByteRange range,
            const TakeBytes& take);
  /// A whole object of at most `most` bytes, checked by its sha256 where the store has one. Error:
  /// also wrong_answer: it is larger, or has another hash.
  std::string text(const std::string& name, std::size_t most);
  /// StoreReader::fixed_revision.
  std::string fixed_revision();

  class State;

 protected:
  std::shared_ptr<State> state_;
};

class Upload;

/// A store that can be written, too.
class OpenWritableStore : public OpenStore {
 public:
  /// Errors (input): as OpenStore; the store can only be read (the error names schemes that can be
  /// written).
  explicit OpenWritableStore(Address address, StoreRules rules = {});

  /// Gives an object these bytes.
  ObjectFacts put(const std::string& name, std::span<const std::byte> bytes);
  /// Begins an object that is written piece by piece. `bytes`: about how many there will be, of
  /// which the size of parts follows; 0: unknown.
  Upload upload(const std::string& name, std::uint64_t bytes = 0);
  /// Aborts uploads of objects below the folder that were begun more than `seconds` ago; returns
  /// how many.
  std::size_t abort_pending(const std::string& folder, double seconds);
  void remove(const std::string& name);
};

/// An object that is being written. It appears with complete(), or not at all. One thread uses it.
class Upload {
 public:
  Upload(Upload&&) noexcept;
  Upload& operator=(Upload&&) = delete;
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;
  /// Aborts what is not complete; a failure of that is a warning.
  ~Upload();

  /// Appends bytes. They are sent when a part is full; memory of one part is kept.
  void add(std::span<const std::byte> bytes);
  /// Sends the rest and makes the object. An answer that is lost is found out by the object's
  /// facts.
  ObjectFacts complete();

 private:
  friend class OpenWritableStore;
  class State;
  explicit Upload(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The schemes that plugins of this machine provide, sorted.
std::vector<std::string> known_schemes();

}  // namespace tessera::stores
