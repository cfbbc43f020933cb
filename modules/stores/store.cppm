export module tessera.stores:store;

import tessera.base;
import tessera.plugin;
import :address;

// The plugin kind "store". A plugin makes requests: each function tries once, within the limits
// that it gets, and throws StoreError. Time limits, pauses and further tries, cancellation, hashes,
// and the order of the parts of an upload are the host's (OpenStore).

export namespace tessera::stores {

/// When a request gives up.
struct RequestLimits {
  double connect_seconds = 20;
  /// With (almost) no bytes in either direction: temporary.
  double stalled_seconds = 30;
  /// Of a request whose answer is small (all but read(), put() and put_part()): temporary.
  double answer_seconds = 60;
  /// Asked at least once each second while a request waits; true: cancelled. Empty: never.
  std::function<bool()> cancelled = {};
};

/// What a store knows about an object.
struct ObjectFacts {
  std::uint64_t size = 0;
  /// Equal for equal content as long as the object stays: a strong ETag, an identity of a version.
  /// Empty: the store has none, and whether an object has changed cannot be told.
  std::string version = {};
  /// Of the content, 64 small hexadecimal digits, where the store has it; else empty. The host
  /// compares it with what it has read.
  std::string sha256 = {};
  /// Of the content as git names it (SHA-1 of "blob SIZE", a zero byte and the content), 40 such
  /// digits; else empty. Compared likewise.
  std::string git_blob = {};

  bool operator==(const ObjectFacts& other) const;
};

/// An object of a list, by its name in the store.
struct ListedObject {
  std::string name = {};
  ObjectFacts facts = {};  // a store that lists no version leaves it empty
};

/// A piece of a list.
struct ListPage {
  std::vector<ListedObject> objects = {};
  /// What continues the list; empty: this was its end.
  std::string next = {};
};

/// Bytes [begin, begin + count) of an object.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

/// Takes bytes in their order, in pieces of any size.
using TakeBytes = std::function<void(std::span<const std::byte> bytes)>;

/// What can be read. Names of objects are parts between '/', without one at either end
/// (check_object_name). Functions are called by several threads at the same time.
class StoreReader {
 public:
  virtual ~StoreReader();

  /// Errors: not_there, and all others.
  virtual ObjectFacts facts(const std::string& name, const RequestLimits& limits) = 0;
  /// Gives the bytes of a range, which is within the object, to `take` as they arrive. `facts` are
  /// what facts() or list() said. Error `changed`: the object has another version, which the
  /// request itself must find out (If-Match, or the version that comes with the bytes), where there
  /// is one. Error `temporary` where fewer bytes have come; those that were taken stay taken, and
  /// the host asks for the rest. What `take` throws passes through.
  virtual void read(const std::string& name, const ObjectFacts& facts, ByteRange range,
                    const TakeBytes& take, const RequestLimits& limits) = 0;
  /// What names the place for good where the address leaves it open, as the commit of a revision:
  /// text that joins the fingerprints of what is read. Empty: nothing.
  virtual std::string fixed_revision(const RequestLimits& limits);
};

/// What has lists of its objects, too.
class StoreLister : public StoreReader {
 public:
  /// The objects whose names begin with `folder` and '/' (all, where it is empty), at any depth, in
  /// pages: `next` is what the page before has, empty for the first one. An empty list is no error.
  virtual ListPage list(const std::string& folder, const std::string& next,
                        const RequestLimits& limits) = 0;
};

/// A part of an upload that the store has.
struct UploadedPart {
  int number = 0;        // from 1
  std::string tag = {};  // by which the store knows it
  std::uint64_t size = 0;
};

/// An upload that was begun, and neither completed nor aborted.
struct PendingUpload {
  std::string name = {};  // of the object
  std::string id = {};
  double begun = 0;  // seconds since 1970; 0: the store does not say
};

/// What parts may be.
struct PartLimits {
  std::uint64_t smallest = 1;  // bytes of each part but the last
  std::uint64_t largest = std::uint64_t{1} << 30;
  int count = 10000;
};

/// What can be written, too. An object appears complete, or not at all.
class StoreWriter : public StoreLister {
 public:
  /// Gives an object these bytes. A second call with the same bytes does no harm.
  virtual ObjectFacts put(const std::string& name, std::span<const std::byte> bytes,
                          const RequestLimits& limits) = 0;
  virtual PartLimits part_limits() const = 0;
  /// Begins an upload in parts, and returns its id. What is not completed is no object.
  virtual std::string begin_upload(const std::string& name, const RequestLimits& limits) = 0;
  /// Sends a part. One that is sent again replaces the one of its number.
  virtual UploadedPart put_part(const std::string& name, const std::string& id, int number,
                                std::span<const std::byte> bytes, const RequestLimits& limits) = 0;
  /// Makes the object of these parts, which are sorted by number.
  virtual ObjectFacts complete_upload(const std::string& name, const std::string& id,
                                      std::span<const UploadedPart> parts,
                                      const RequestLimits& limits) = 0;
  /// Drops the parts. An upload that is not there is no error.
  virtual void abort_upload(const std::string& name, const std::string& id,
                            const RequestLimits& limits) = 0;
  /// The uploads of objects below a folder, for who removes those of processes that were killed.
  virtual std::vector<PendingUpload> pending_uploads(const std::string& folder,
                                                     const RequestLimits& limits) = 0;
  /// Removes an object. One that is not there is no error.
  virtual void remove(const std::string& name, const RequestLimits& limits) = 0;
};

/// A store, by what can be done with it.
using StoreAccess = std::variant<std::unique_ptr<StoreReader>, std::unique_ptr<StoreLister>,
                                 std::unique_ptr<StoreWriter>>;

/// What an address leads to: a store (a bucket, a repository, a host) and a name in it. The name is
/// of an object, or of a folder, or empty: everything.
struct StorePlace {
  StoreAccess store;
  std::string name;

  /// `opened` is what its type says: read, listed or written too.
  template <class Opened>
  StorePlace(std::unique_ptr<Opened> opened, std::string named) : name(std::move(named)) {
    if constexpr (std::convertible_to<Opened&, StoreWriter&>) {
      store = std::unique_ptr<StoreWriter>(std::move(opened));
    } else if constexpr (std::convertible_to<Opened&, StoreLister&>) {
      store = std::unique_ptr<StoreLister>(std::move(opened));
    } else {
      store = std::unique_ptr<StoreReader>(std::move(opened));
    }
  }
};

/// The plugin kind "store": it serves the addresses whose scheme is the name of the plugin's offer.
class StoreScheme {
 public:
  static constexpr plugin::Kind plugin_kind{"store"};

  virtual ~StoreScheme();
  /// Asks nobody, starts no thread, and reads what it needs of the environment and of files (keys,
  /// the server's address): it is called where the ranks do not exist yet. Errors: wrong_address
  /// (what the scheme expects), no_rights (a key that cannot be read).
  virtual StorePlace open(const Address& address) const = 0;
  /// Where a person can get or enter what a store asks for ("set HF_TOKEN to a token of
  /// https://..."); the end of errors about rights.
  virtual std::string how_to_get_rights() const;
};

}  // namespace tessera::stores
