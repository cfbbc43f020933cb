// Pickles and zip archives as PyTorch writes them: read without executing anything, and written.
module tessera.checkpoint:pickle;

import tessera.base;

namespace tessera::checkpoint_detail {

/// A value of a pickle. Values are owned by their Pickle.
struct PickleValue {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    real,
    text,
    tuple,
    list,
    dict,        // items: key, value, key, value...
    global,      // text: "module name"
    object,      // type(items...), with a state
    persistent,  // items[0]: what identifies it
  };
  Kind kind = Kind::none;
  std::int64_t integer = 0;  // and boolean
  double real = 0;
  std::string text = {};
  std::vector<const PickleValue*> items = {};
  const PickleValue* type = nullptr;
  const PickleValue* state = nullptr;

  /// Whether it is an object of this type, "module name".
  bool is_a(std::string_view name) const;
  /// The value of a text key of a dict; null: it has none.
  const PickleValue* find(std::string_view key) const;
};

/// A pickle, protocol 2 to 5, that only builds values of the types that PyTorch's checkpoints have.
class Pickle {
 public:
  /// Error (input) that begins with `where`: it is cut, has an instruction or a type that such
  /// files do not have, or an integer of more than 64 bits.
  Pickle(std::span<const std::byte> bytes, const std::string& where);
  const PickleValue& root() const { return *root_; }

 private:
  friend class Unpickler;
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

/// Writes a pickle of protocol 2, instruction by instruction.
class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02") {}
  void none() { bytes_ += 'N'; }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  /// "module name".
  void global(std::string_view name);
  /// Begins a tuple, which goes up to `end_tuple`.
  void begin_tuple() { bytes_ += '('; }
  void end_tuple() { bytes_ += 't'; }
  /// Begins keys and values, which go up to `end_dict`.
  void begin_dict() { bytes_ += "}("; }
  void end_dict() { bytes_ += 'u'; }
  void begin_list() { bytes_ += "]("; }
  void end_list() { bytes_ += 'e'; }
  /// type(*arguments) of the two values before.
  void call() { bytes_ += 'R'; }
  /// An object of the type before, without arguments; its state follows, then `set_state`.
  void create() { bytes_ += ")\x81"; }
  void set_state() { bytes_ += 'b'; }
  void persistent() { bytes_ += 'Q'; }
  std::string finish();

 private:
  std::string bytes_;
};

/// An entry of a zip archive that is not compressed.
struct ZipEntry {
  std::span<const std::byte> bytes;
  std::uint32_t checksum = 0;  // CRC-32 of the bytes, by the archive's directory
  /// Whether the bytes have that checksum: reads them all.
  bool is_intact() const;
};

/// The entries of a zip archive whose entries are not compressed, by name. Error (input) that
/// begins with `where`.
std::map<std::string, ZipEntry> zip_entries(std::span<const std::byte> archive,
                                            const std::string& where);
/// An archive of these entries, uncompressed.
/// Error (input): it has 4 GiB or more.
std::string zip_archive(
    const std::vector<std::pair<std::string, std::span<const std::byte>>>& entries,
    const std::string& where);

}  // namespace tessera::checkpoint_detail
