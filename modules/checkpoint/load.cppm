export module tessera.checkpoint:load;

import tessera.base;
import tessera.tensor;
import :source;

export namespace tessera {

/// Options of loading a checkpoint.
struct LoadOptions {
  /// Missing and unexpected names are an error; otherwise they are only reported.
  bool strict = true;
  /// Floating tensors of another type are cast; otherwise they are an error.
  bool cast = false;
  /// Prefix of the stored names before the state's names; other stored names are ignored.
  std::string prefix = {};
  /// Patterns of stored names that are ignored.
  std::vector<std::string> ignore = {};
  /// The hash of the base whose values the state has already: its tensors, which a checkpoint of
  /// that base does not store, stay as they are.
  std::string base = {};
};

/// Names in which a state and a checkpoint differ.
struct LoadReport {
  std::vector<std::string> missing;     // in the state, not stored
  std::vector<std::string> unexpected;  // stored, not in the state
};

/// Fills the state's tensors in place, whatever their layout and mesh: each rank reads only the
/// bytes of its own parts. Scalars are replaced. No communication. A tensor that shares its memory
/// with one that is stored (tied parameters) is not missing.
/// Error (input), before anything is written, that lists all: names that are missing or unexpected
/// (strict), other shapes, other types. And one for a checkpoint that leaves out the tensors of a
/// base other than `options.base`.
LoadReport load_state(const TensorSource& from, StateDict& into, const LoadOptions& options = {});

/// As load_state for tensors of other programs (SafetensorsFolder); scalars are not changed.
/// Floating types are cast; the rotary tables that old folders hold are ignored. Error (input)
/// besides: a value that is NaN or infinite in the state's type; some tensors are filled then.
LoadReport load_weights(const TensorSource& from, StateDict& into,
                        const LoadOptions& options = {.strict = true,
                                                      .cast = true,
                                                      .prefix = "",
                                                      .ignore = {"**.rotary_emb.inv_freq"}});

/// The comparison of load_weights, from headers: the state's tensors may be on the meta device.
/// Before a run starts. Error (input): what load_weights would refuse before it writes, and names
/// that are one tensor of the state (tied embeddings) but are stored with different values.
void check_weights(const TensorSource& from, const StateDict& state,
                   const LoadOptions& options = {.strict = true,
                                                 .cast = true,
                                                 .prefix = "",
                                                 .ignore = {"**.rotary_emb.inv_freq"}});
/// Reads all values that load_weights would read, some rows at a time. Error (input) that names the
/// tensor and the element: a value is NaN or infinite in the state's type.
void check_weight_values(const TensorSource& from, const StateDict& state,
                         const LoadOptions& options = {});
/// Whether this rank's parts of the state have the bits that are stored. Tensors that are not
/// stored are not compared; one that is stored with another type or shape differs.
bool has_stored_values(const TensorSource& from, const StateDict& state);

/// The comparison for the tensors that load_state fills; scalars are not compared.
void check_state(const TensorSource& from, const StateDict& state, const LoadOptions& options = {});

}  // namespace tessera
