package services

// KafkaVersion is compared with the pom that fetches the jars.
const KafkaVersion = kafkaVersion
