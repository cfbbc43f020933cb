module tessera.encoders:encoder_families;

import tessera.base;
import tessera.models;
import tessera.hub;
import :encoder;
import :encoder_config;

// What distinguishes the families of encoders.
namespace tessera::encoders {

/// A module of the model, and its name in a folder: of one in a block without the block's name.
struct StoredModule {
  std::string_view own;
  std::string_view stored;
};

/// Modules of a block that a folder has as one, whose parts follow one another along dim 0.
struct StoredParts {
  std::string_view stored;
  std::vector<std::string_view> own;
};

/// A family of encoders.
struct EncoderFamily {
  std::string_view name;
  // Its classes in transformers; empty: there is none.
  std::string_view base_class;
  std::string_view token_class;
  std::string_view class_class;
  std::string_view token_classes_class;
  /// The sizes and properties of a config.json, whose head is known; problems go to `config`.
  void (*read)(models::HubConfigFile& config, EncoderShape& shape);
  /// What `read` has read; those of labels and classes follow.
  std::vector<models::HubKey> (*write)(const EncoderShape& shape);
  std::string_view prefix;              // of all names but those of heads
  std::string_view block;               // before a block's number
  std::vector<std::string_view> heads;  // beginnings of names of heads
  std::vector<StoredModule> modules;
  std::vector<StoredModule> block_modules;
  std::vector<StoredParts> block_parts;
  std::vector<StoredModule> tensors;      // parameters that are not a module's weight or bias
  std::vector<std::string_view> ignored;  // patterns of tensors
};

/// Null: there is no such family.
const EncoderFamily* find_encoder_family(std::string_view name);

/// What a folder calls the parameters. `is_export`: as transformers writes them; otherwise names
/// of older writers are among them. `new_head`: the folder's head is another one.
hub::HubNames names_of(const EncoderConfig& config, bool is_export, bool new_head = false);

}  // namespace tessera::encoders
