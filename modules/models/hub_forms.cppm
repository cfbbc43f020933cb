module tessera.models:hub_forms;

import tessera.base;
import :values;
import :hub_config;
import :decoder_family;

// The forms that values of properties have in config.json.
namespace tessera::models {

/// Texts of config.json and what they are here, of which an export writes the first that fits.
/// "true" and "false" are no texts there, and "" is null.
using HubWords = std::vector<std::pair<std::string, std::string>>;

/// The form of a value that nothing else says: true or false, a positive integer or null, a
/// positive number or null, a list of integers, a list of rates with one for each layer.
std::shared_ptr<const HubForm> usual_form(const ModelValue& value);

/// An integer.
class IntegerForm : public HubForm {
 public:
  struct Options {
    std::string also = "";  // another key for it: read where the first one is absent, written
    std::string none = "";  // a text that stands for 0
    bool counts = false;    // none of the range is null; otherwise 0 is
  };
  explicit IntegerForm(Options options) : options_(std::move(options)) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  bool fits(const ModelValue& value) const override;

 private:
  Options options_;
};

/// A number.
class NumberForm : public HubForm {
 public:
  /// `whole`: transformers wants an integer where the number is one.
  explicit NumberForm(bool whole) : whole_(whole) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  bool fits(const ModelValue& value) const override;

 private:
  bool whole_;
};

/// One of a list of two numbers: the entry with this number, from 0.
class PairForm : public HubForm {
 public:
  explicit PairForm(std::int64_t entry) : entry_(entry) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  bool fits(const ModelValue& value) const override;

 private:
  std::int64_t entry_;
};

/// A word for a text, or for true or false.
class WordForm : public HubForm {
 public:
  explicit WordForm(HubWords words) : words_(std::move(words)) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  bool fits(const ModelValue& value) const override;

 private:
  HubWords words_;
};

/// A list about layers for the layers, from 0, that a property has.
class LayersForm : public HubForm {
 public:
  bool fits(const ModelValue& value) const override;
};

/// A number for each layer; the property has the layers whose number is 0.
class ZerosForm : public LayersForm {
 public:
  explicit ZerosForm(std::string replaces) : replaces_(std::move(replaces)) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  std::string replaces() const override { return replaces_; }

 private:
  std::string replaces_;
};

/// A list of layers; the property has all others.
class OthersForm : public LayersForm {
 public:
  explicit OthersForm(std::string replaces) : replaces_(std::move(replaces)) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  std::string replaces() const override { return replaces_; }

 private:
  std::string replaces_;
};

/// One of two texts for each layer; the property has the layers with the first one.
class MarksForm : public LayersForm {
 public:
  /// `replaces`: the key of another property, which is its smallest value where config.json has the
  /// list.
  MarksForm(std::string own, std::string other, std::string replaces = "")
      : own_(std::move(own)), other_(std::move(other)), replaces_(std::move(replaces)) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  std::string replaces() const override { return replaces_; }

 protected:
  std::string own_, other_;

 private:
  std::string replaces_;
};

/// The same for layers without a window or chunks, of which an export says what the shape has.
class LayerTypesForm : public MarksForm {
 public:
  /// `has_last`: the last layer is always one of these, whatever config.json says.
  LayerTypesForm(std::string own, std::string other, std::string replaces = "",
                 bool has_last = false)
      : MarksForm(std::move(own), std::move(other), std::move(replaces)), has_last_(has_last) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  bool has_last() const { return has_last_; }

 private:
  bool has_last_;
};

/// The same for layers without experts.
class DenseLayersForm : public MarksForm {
 public:
  using MarksForm::MarksForm;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
};

/// What each layer has, of which the property has a letter each.
class PatternForm : public HubForm {
 public:
  struct Options {
    HubWords words = {};        // of a list with a word for each layer
    std::string also = "";      // another key: such a list, or a text with a letter for each layer
    std::string indices = "";   // a key: a list with the numbers of the attention layers
    std::int64_t begin = 0;     // the number of the first layer there
    std::string interval = "";  // a key: each so many-th layer attends where nothing else says it
  };
  explicit PatternForm(Options options) : options_(std::move(options)) {}
  void read(const DecoderProperty& property, HubInput& in) const override;
  void write(const DecoderProperty& property, const HubOutput& out) const override;
  bool fits(const ModelValue& value) const override;

 private:
  std::string by_indices(const DecoderProperty& property, HubConfig& config,
                         std::int64_t layers) const;
  std::string by_words(const std::string& key, HubConfig& config, std::int64_t layers) const;

  Options options_;
};

}  // namespace tessera::models
