"""What runs data creation on many machines: Apache Beam and Apache Spark."""
