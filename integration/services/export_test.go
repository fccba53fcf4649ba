package services

// KafkaVersion is compared with the pom that fetches the jars.
const KafkaVersion = kafkaVersion

// ExternalMySQL returns the server that the environment names.
var ExternalMySQL = externalMySQL
