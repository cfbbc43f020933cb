module;
#include <tessera/json.hpp>
module tessera.hub:gguf_reading;

import tessera.base;
import tessera.models;
import tessera.checkpoint;

// What the reader of a file's fields works with, and the parts of it that are of one concept each.

namespace tessera::hub {

/// Fields of a file, by their names; those that were asked for are known.
class FileFields {
 public:
  explicit FileFields(const TensorSource& file);

  /// A field with one value; null: it is not there.
  const nlohmann::json* find(const std::string& name);
  /// A field of any form.
  const nlohmann::json* any(const std::string& name);
  std::optional<double> number(const std::string& name);
  std::string text(const std::string& name, const std::string& otherwise);
  /// Whether a field's value is this one (JSON).
  bool has_value(const std::string& name, const std::string& json);

  [[noreturn]] void wrong(const std::string& name, const std::string& what) const;
  /// Error (input): a field that begins so, and that nobody asked for.
  void finish(const std::string& begin) const;

  /// Numbers are stored in f32: 1e-5 is meant, not its nearest value.
  static nlohmann::json plain(const nlohmann::json& value);

 private:
  nlohmann::json fields_;
  std::string path_;
  std::set<std::string> known_;
};

/// The family that a file is read as.
struct GgufFamily {
  std::string name;
  models::GgufForm form;
  std::string architecture;  // of the file
};

/// The family whose conditions the file fulfils most of; built-in ones before those of plugins.
/// Error (input): there is none; the file is one of several parts.
GgufFamily family_of_file(FileFields& fields);

inline constexpr std::int64_t most_layers = 10000;

/// A file that is being read, and the config.json that comes of it.
struct GgufReading {
  explicit GgufReading(const TensorSource& file);
  GgufReading(const GgufReading&) = delete;
  GgufReading& operator=(const GgufReading&) = delete;

  /// The name of a field of the architecture.
  std::string own(std::string_view name) const;
  /// A size that config.json has by now; 0: it has not.
  std::int64_t size_of(const char* field) const;
  /// How many layers lists are made for: more are refused by the family.
  std::int64_t shown_layers() const;
  /// The values again from the first one after the last one, one for each layer.
  nlohmann::json for_each_layer(const nlohmann::json& values) const;
  /// The value of a field for a layer; null: the file lacks it.
  nlohmann::json value_of_layer(const std::string& field, std::int64_t layer);

  const TensorSource& file;
  FileFields fields;
  GgufFamily family;
  const models::GgufForm& form;
  nlohmann::json config;
  std::int64_t head_dim = 0;
  double rotated_share = 1;         // of a head
  std::int64_t further_layers = 0;  // by which tokens after the next one are predicted
};

/// The value that a text of JSON has.
nlohmann::json value_of(const std::string& json);

// gguf_layers.cpp: in what layers differ.
/// Which kind each layer is of, by lists or an interval.
void read_layers(GgufReading& reading);
/// Which layers have a window.
void read_windows(GgufReading& reading);
/// Fields that have a value for layers with a window and another one for those without.
void read_windowed(GgufReading& reading);
/// The widths of feed-forward parts: one, or twice as much in the last layers.
void read_widths(GgufReading& reading);

// gguf_rotary.cpp
/// The rotary embedding's scaling, and its form in config.json.
void read_rotary(GgufReading& reading);

}  // namespace tessera::hub
