export module tessera.tensor:number;

import tessera.base;

// Numbers of the host that know where they come from, while a step is recorded. Outside of a
// recording they are plain numbers.
export namespace tessera {

/// How a number follows from others.
enum class NumberOp : std::uint8_t {
  constant,
  variable,
  add,
  subtract,
  multiply,
  divide,
  negate,
  minimum,
  maximum,
  power,
  square_root,
};

/// Where a number comes from: an expression of the calling thread, see source_of. 0: it is a
/// constant.
using SourceId = std::uint32_t;

/// One step of such an expression. Operands that are constants are sources too.
struct NumberSource {
  NumberOp op = NumberOp::constant;
  double constant = 0;
  std::string variable = {};
  SourceId left = 0;  // 0: none
  SourceId right = 0;
};
/// Equal expressions of a thread have one id; they are kept as long as the thread.
/// Error: the calling thread has no such expression.
const NumberSource& source_of(SourceId id);
/// Notes that a plain number was taken from this source.
void note_read(SourceId id);
/// The variables of which this thread has taken plain numbers since the last call, each once.
std::vector<std::string> take_read_variables();
/// Result of an operation, in a recorded step and in its replays.
double apply(NumberOp op, double left, double right);

/// A number of the host. Arithmetic on numbers that come from a step's variables is recorded with
/// the step, so a replay computes it again.
class Number {
 public:
  constexpr Number() = default;
  constexpr Number(double value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  constexpr Number(double value, SourceId source) : value_(value), source_(source) {}
  /// The variable of this name of a step that is being recorded.
  static Number variable(std::string_view name, double value);

  /// A plain double. In a recorded step it would be a constant, so reading the value of a number
  /// that comes from a variable is an error there, which names the variable.
  constexpr double value() const {
    if (source_ != 0) {
      note_read(source_);
    }
    return value_;
  }
  /// The same for code whose result follows the source too, or is right for other values.
  constexpr double untraced_value() const { return value_; }
  constexpr SourceId source() const { return source_; }

  friend inline Number operator+(const Number& a, const Number& b) {
    return combined(NumberOp::add, a.value_ + b.value_, a, b);
  }
  friend inline Number operator-(const Number& a, const Number& b) {
    return combined(NumberOp::subtract, a.value_ - b.value_, a, b);
  }
  friend inline Number operator*(const Number& a, const Number& b) {
    return combined(NumberOp::multiply, a.value_ * b.value_, a, b);
  }
  friend inline Number operator/(const Number& a, const Number& b) {
    return combined(NumberOp::divide, a.value_ / b.value_, a, b);
  }
  friend inline Number operator-(const Number& a) {
    return combined(NumberOp::negate, -a.value_, a, Number());
  }
  friend Number min(const Number& a, const Number& b);
  friend Number max(const Number& a, const Number& b);
  friend Number pow(const Number& base, const Number& exponent);
  friend Number sqrt(const Number& x);

 private:
  static inline Number combined(NumberOp op, double value, const Number& a, const Number& b) {
    if ((a.source_ | b.source_) == 0) [[likely]] {
      return {value};
    }
    return {value, combined_source(op, a, b)};
  }
  static SourceId combined_source(NumberOp op, const Number& a, const Number& b);

  double value_ = 0;
  SourceId source_ = 0;
};
Number min(const Number& a, const Number& b);
Number max(const Number& a, const Number& b);
Number pow(const Number& base, const Number& exponent);
Number sqrt(const Number& x);

/// A count of the host, such as the number of a step; otherwise as Number. Up to 2^53.
class Count {
 public:
  constexpr Count() = default;
  constexpr Count(std::int64_t value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  constexpr Count(std::int64_t value, SourceId source) : value_(value), source_(source) {}
  static Count variable(std::string_view name, std::int64_t value);

  constexpr std::int64_t value() const {
    if (source_ != 0) {
      note_read(source_);
    }
    return value_;
  }
  constexpr std::int64_t untraced_value() const { return value_; }
  constexpr SourceId source() const { return source_; }
  /// The count as a number, for arithmetic.
  inline Number number() const { return {static_cast<double>(value_), source_}; }
  /// This count moved by a constant.
  Count plus(std::int64_t constant) const;

 private:
  std::int64_t value_ = 0;
  SourceId source_ = 0;
};

}  // namespace tessera
