export module tessera.app.server:served_adapters;

import tessera.app.base;
import tessera.hub;
import tessera.text;

// Adapters that requests choose by their names.

export namespace tessera::app {

/// Which adapters there are, and may be.
struct AdapterOptions {
  std::vector<std::pair<std::string, std::string>> named = {};  // at the start: name, folder
  std::string folder = {};  // below which requests may load further ones; empty: they may not
  std::int64_t most = 16;   // at the same time

  /// Whether there can be any.
  bool used() const { return !named.empty() || !folder.empty(); }
};

/// An adapter that the model has.
struct ServedAdapter {
  std::int64_t number = 0;  // see text::EngineRequest
  std::string name;
  std::string path;
  std::int64_t created = 0;  // seconds since 1970
};
/// Who has it may be answered with it: an adapter goes when nobody has it.
using AdapterUse = std::shared_ptr<const ServedAdapter>;

/// The adapters of a server. One thread has the model; others ask for names.
class ServedAdapters {
 public:
  /// The model must outlive it, and has been opened for adapters where the options name any.
  /// `base`: the name of the model, which no adapter may have. Errors (input): the folder is none;
  /// those of load() for the adapters at the start.
  ServedAdapters(const text::TextModel& model, AdapterOptions options, std::string base);

  /// Null: there is none of this name.
  AdapterUse find(const std::string& name) const;
  std::vector<AdapterUse> all() const;
  /// Reads an adapter below the folder of the options; work() then gives it to the model and calls
  /// `done`, with what was wrong or null. Errors (input): a name that is empty, too long, taken or
  /// has control characters; too many adapters; a folder that is elsewhere; those of
  /// TextModel::read_adapter.
  void load(const std::string& name, const std::string& path,
            std::function<void(const std::exception* error)> done);
  /// No further request gets it. False: there is none of this name.
  bool unload(const std::string& name);
  /// What is left to do for the thread that has the model, between its steps.
  void work();

 private:
  struct Arrival {
    std::shared_ptr<ServedAdapter> adapter;
    std::vector<hub::LayerUpdate> updates;
    std::function<void(const std::exception* error)> done;
  };
  std::string checked_path(const std::string& path) const;
  void reserve(const std::string& name);
  void read(const std::string& name, const std::string& path,
            std::function<void(const std::exception* error)> done);

  const text::TextModel& model_;
  AdapterOptions options_;
  std::string base_;
  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, AdapterUse> named_;
  std::set<std::string> arriving_;
  std::vector<Arrival> arrivals_;
  std::vector<AdapterUse> leaving_;
  std::int64_t numbers_ = 0;
};

}  // namespace tessera::app
