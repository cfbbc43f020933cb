// Checkpoints in a store: what is one, which files belong to none, and how one is removed.
module tessera.checkpoint:store_place;

import tessera.base;
import tessera.stores;

namespace tessera::checkpoint_detail {

/// The name of an attempt to save, which no other attempt has: when it began, and a number at
/// random.
class SaveAttempt {
 public:
  /// A new one.
  SaveAttempt();
  /// The one of this text, which another rank has made.
  explicit SaveAttempt(std::string text);
  const std::string& text() const { return text_; }
  /// "rank-3-ATTEMPT.safetensors".
  std::string file_name(int rank) const;
  /// Seconds since 1970 at which the attempt began that wrote a file of this name; nothing for a
  /// file that no attempt writes.
  static std::optional<std::int64_t> begun(std::string_view file_name);

 private:
  std::string text_;
};

/// Files of attempts that were never completed are removed when they are that old, in seconds: an
/// attempt of another process may still be at work.
inline constexpr std::int64_t oldest_attempt = 24 * 3600;

/// Whether the text is an address; a path otherwise. Error (input): an address of a wrong form.
std::optional<stores::Address> address_of(const std::string& place);

/// The number of a folder's name "step-N"; nothing for another name.
std::optional<std::uint64_t> checkpoint_number(const std::string& name);

/// The folders FOLDER/step-N with a checkpoint.json, as addresses, newest first.
std::vector<std::string> stored_checkpoints(const stores::Address& folder);

/// Removes all but the `keep` newest checkpoints: of each first its index, so that no part of a
/// checkpoint is seen as one, then the files that the index names; and, of attempts that are older
/// than oldest_attempt, what no checkpoint names. Errors: of the store.
void prune_stored(const stores::Address& folder, int keep);

}  // namespace tessera::checkpoint_detail
