module tessera.evaluation:python_random;

import tessera.base;

namespace tessera::evaluation {

/// Python's random.Random with a whole number as seed: what it draws are the same numbers.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed);
  ~PythonRandom();

  /// random.sample(range(population), count). Error: more than the population.
  std::vector<std::size_t> sample(std::size_t population, std::size_t count);

 private:
  /// A number below the limit, from as many bits as it has.
  std::size_t below(std::size_t limit);
  std::uint64_t bits(int count);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::evaluation
