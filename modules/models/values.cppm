export module tessera.models:values;

import tessera.base;

export namespace tessera::models {

/// Value of a key of [model].
using ModelValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                std::vector<double>>;

/// Allowed numbers of a key.
struct ModelRange {
  std::optional<double> low = std::nullopt;
  std::optional<double> high = std::nullopt;
  bool low_open = false;  // more than `low`, not `low` itself
};

/// A key of [model] that belongs to one family.
struct ModelKey {
  std::string name;    // "dim": model.dim in a config
  ModelValue initial;  // what it is where the config does not give it; its type is the key's
  std::string doc;
  ModelRange range = {};                  // of a number, or of each of a list
  std::vector<std::string> choices = {};  // of a text
};

/// The values of a family's keys, by name.
class ModelValues {
 public:
  ModelValues() = default;
  /// The initial values of these keys.
  explicit ModelValues(std::span<const ModelKey> keys);

  // Errors: there is no such value, or it has another type.
  std::int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  bool flag(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  const std::vector<std::int64_t>& integers(std::string_view name) const;
  const std::vector<double>& numbers(std::string_view name) const;
  /// Errors: there is no such value.
  ModelValue& at(std::string_view name);

  void set(const std::string& name, ModelValue value);
  const std::map<std::string, ModelValue>& all() const { return values_; }
  bool operator==(const ModelValues& other) const;

 private:
  std::map<std::string, ModelValue> values_;
};

/// The sizes of one model.
struct ModelSizes {
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;  // the longest sequence that it is meant for
  ModelValues values = {};
  bool operator==(const ModelSizes& other) const;
};

/// Values that do not fit together, with the names of the keys that may be at fault.
struct ModelProblem {
  std::vector<std::string> keys;
  std::string text;  // "must divide dim (dim 30, 4 heads)"
};

}  // namespace tessera::models
