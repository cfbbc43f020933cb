export module tessera.program:expression;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// Variables between two executions of a program: numbers that dynamic arguments take from
/// the step.
struct StepVariables {
  std::map<std::string, double> numbers = {};        // "lr"
  std::map<std::string, std::int64_t> counts = {};   // "step"
  std::map<std::string, RandomStream> streams = {};  // where each stands at the step's beginning
  /// Values of the host that decide how the step goes, by their names: a flag, a stage.
  std::map<std::string, double> guards = {};
};

/// A number as it follows from the variables of a step: "lr", "step+3", "min(lr, 1/sqrt(step))". It
/// computes what the recorded step has computed, operation by operation.
class Expression {
 public:
  Expression() = default;
  /// The expression that the calling thread has recorded of this source. Error: it has no such
  /// source.
  explicit Expression(SourceId source);
  /// Error (input): the text is not an expression.
  static Expression parse(std::string_view text);

  /// Error: a variable has no value.
  double value(const StepVariables& variables) const;
  std::string text() const;
  /// The variables' names, each as often as it occurs.
  std::vector<std::string> variables() const;
  void rename(const std::function<std::string(const std::string&)>& name);

 private:
  friend class ExpressionParser;

  /// Operands come before what is computed from them.
  struct Term {
    NumberOp op = NumberOp::constant;
    double constant = 0;
    std::string variable = {};
  };
  void add(SourceId source);

  std::vector<Term> terms_ = {};
};

}  // namespace tessera
