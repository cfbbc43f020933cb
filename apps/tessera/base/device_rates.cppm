export module tessera.app.base:device_rates;

export namespace tessera::app {

/// Rates of a rank's device; 1/s unless it says otherwise.
struct DeviceRates {
  double products_of_words = 50e12;    // FLOPs of products whose operands have 32 bits or more
  double products = 700e12;            // FLOPs of products whose operands have 16 bits
  double products_of_bytes = 1200e12;  // FLOPs of products whose operands have 8 bits
  double attention = 420e12;           // FLOPs of attention
  double bandwidth = 2.85e12;          // bytes that kernels read and write
  double launch = 2.8e-6;              // seconds that each kernel adds to its work
  double host = 0;                     // bytes to the memory of the machine; 0: it is the device's
};

}  // namespace tessera::app
