export module tessera.sinks:sink;

import tessera.base;
import tessera.options;
import tessera.plugin;
import :event;

export namespace tessera::sinks {

/// Thrown by a sink whose receiver cannot take anything now: the same events are given to it again,
/// after a pause that grows.
class UnavailableError : public Error {
 public:
  /// `after`: seconds that the receiver asks for; 0: it asks for none.
  explicit UnavailableError(ErrorFields fields, double after = 0);
  double after() const noexcept;

 private:
  double after_;
};

/// The plugin kind "sink": it brings what a run tells to somebody. Its factory reads options and
/// nothing else: it is called before the ranks start too, where no thread may exist.
///
/// take() and finish() are called in a thread of the sink's own. They return within seconds, so
/// that a run can end; what they throw is said once and counted, and never ends the run.
class Sink {
 public:
  static constexpr plugin::Kind plugin_kind{"sink"};
  using Factory = std::function<std::unique_ptr<Sink>(PluginOptions& options)>;

  virtual ~Sink();

  /// Whether it could begin: called once before the ranks start, in another process than the other
  /// functions. It starts no thread, and leaves nothing. Error (input): a port is taken, a program
  /// is not there.
  virtual void check() const;
  /// The next events, in their order. Throws UnavailableError where none of them was taken for
  /// good: they come again, first and alone. Another exception: they are lost.
  virtual void take(std::span<const Event> events) = 0;
  /// No further events follow. `seconds`: what is left of patience().
  virtual void finish(double seconds);
  /// Seconds that the end of a run waits for what is not delivered.
  virtual double patience() const;
};

/// The sink of this name: `command`, or what a plugin provides. `where` is the prefix of errors
/// about options. Errors (input): there is none (with the nearest name); options that it does not
/// have.
std::unique_ptr<Sink> load_sink(std::string_view name, std::string_view options = "{}",
                                const std::string& where = "options");

/// The names of the sinks that need no plugin.
std::vector<std::string> built_in_sinks();

}  // namespace tessera::sinks
