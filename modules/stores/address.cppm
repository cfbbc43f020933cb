export module tessera.stores:address;

import tessera.base;

export namespace tessera::stores {

/// The name of something in a store: "SCHEME:REST", as "s3://bucket/path", "https://host/path" and
/// "hf:owner/name@revision". A value of this type has the right form: at most longest_address bytes
/// of UTF-8 without control characters, no part "." or "..", no '?' or '#' (addresses are shown and
/// stored, and what follows these is often a secret), no user and no password.
class Address {
 public:
  static constexpr std::size_t longest_address = 2048;

  /// Error (input): it has not this form.
  explicit Address(std::string_view text);

  const std::string& text() const { return text_; }
  /// In small letters: "s3".
  const std::string& scheme() const { return scheme_; }
  /// What follows "SCHEME:", without "//".
  const std::string& rest() const { return rest_; }
  /// The address of what has this name below this one: parts between '/'. Error (input): as of a
  /// new one.
  Address operator/(std::string_view name) const;

  bool operator==(const Address& other) const;

 private:
  std::string text_;
  std::string scheme_;
  std::string rest_;
};

/// A path on this machine, as the user wrote it.
struct LocalPath {
  std::string path = {};
  bool operator==(const LocalPath& other) const;
};

/// What a config or a command names where it takes a file or a folder.
using Location = std::variant<LocalPath, Address>;

/// What a text names. It is an address where it begins with a scheme (a small letter, then at least
/// one more small letter, digit, '+' or '-') and ':', and a path otherwise: "./a:b" is a file.
/// Error (input): an address of a wrong form.
Location parse_location(std::string_view text);

/// Whether parse_location() takes a text for an address; what follows the scheme may still be
/// wrong.
bool is_address(std::string_view text);

/// The text that parse_location() reads as this location.
const std::string& text_of(const Location& location);

/// Error (input) that names what is wrong, unless `name` is parts between single '/', none of them
/// empty, "." or "..", without control characters, '\\' and bytes that are not UTF-8: what a store
/// may list and what may become a file below a folder. `thing` begins the error.
void check_object_name(std::string_view name, const std::string& thing);

}  // namespace tessera::stores
