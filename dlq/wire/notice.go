package wire

import "time"

// Notice is a notification: the body of a webhook.
type Notice struct {
	ID    string    `json:"id" doc:"The same for each attempt to send it."`
	Kind  string    `json:"kind" enum:"new_cause,regressed_cause,run_stopped,run_awaits_approval,store_down"`
	At    time.Time `json:"at" doc:"When it happened."`
	Text  string    `json:"text" doc:"For people."`
	Link  string    `json:"link,omitempty" doc:"The page of the dashboard, if server.public_url is configured."`
	Cause *Group    `json:"cause,omitempty"`
	Run   *Run      `json:"run,omitempty"`
}

// Mute is a cause without notifications.
type Mute struct {
	Fingerprint string    `json:"fingerprint"`
	By          string    `json:"by"`
	Note        string    `json:"note,omitempty"`
	At          time.Time `json:"at"`
	Until       time.Time `json:"until,omitzero" doc:"Absent if the mute is permanent."`
}

// MuteRequest mutes a cause.
type MuteRequest struct {
	Seconds float64 `json:"seconds,omitempty" minimum:"0" maximum:"31536000" doc:"How long to mute it; 0 means permanently."`
	Note
}

// MuteList are the muted causes, the latest first.
type MuteList struct {
	Mutes []Mute `json:"mutes" nullable:"false"`
}
