package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEmployee_Validate(t *testing.T) {
	valid := Employee{
		ID: "E1", Version: 1, Name: "Ana Lima", CPF: "529.982.247-25", BirthDate: "1990-01-02",
		HiredOn: "2020-03-04",
	}
	for name, tc := range map[string]struct {
		change func(*Employee)
		kind   string
		says   string
	}{
		"valid":                      {func(*Employee) {}, "", ""},
		"dismissed on the first day": {func(e *Employee) { e.DismissedOn = e.HiredOn }, "", ""},
		"sixteen today":              {func(e *Employee) { e.BirthDate = "2004-03-04" }, "", ""},
		"sixteen tomorrow": {
			func(e *Employee) { e.BirthDate = "2004-03-05" }, "age",
			"Falha na validação: idade inferior a 16 anos",
		},
		"check digit": {
			func(e *Employee) { e.CPF = "529.982.247-26" }, "cpf",
			"Falha na validação: CPF inválido",
		},
		"one digit eleven times": {
			func(e *Employee) { e.CPF = "111.111.111-11" }, "cpf",
			"Falha na validação: CPF inválido",
		},
		"hired before born": {
			func(e *Employee) { e.HiredOn = "1980-01-01" }, "dates",
			"Falha na validação: admissão anterior ao nascimento",
		},
		"dismissed before hired": {
			func(e *Employee) { e.DismissedOn = "2020-03-03" }, "dates",
			"Falha na validação: desligamento anterior à admissão",
		},
		"no dates": {
			func(e *Employee) { e.BirthDate, e.HiredOn, e.DismissedOn = "2 Jan 1990", "", "soon" }, "dates",
			"Falha na validação: data de nascimento inválida; data de admissão inválida; data de desligamento inválida",
		},
		"no name": {func(e *Employee) { e.Name = "" }, "required", "Falha na validação: matrícula e nome são obrigatórios"},
		"two faults, the first gives the kind": {
			func(e *Employee) { e.CPF, e.BirthDate = "", "2010-01-01" }, "cpf",
			"Falha na validação: CPF inválido; idade inferior a 16 anos",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := valid
			tc.change(&e)
			err := e.validate()
			if tc.says == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tc.says)
			v, ok := errors.AsType[*ValidationError](err)
			require.True(t, ok)
			require.Equal(t, tc.kind, v.Code())
			require.True(t, v.Permanent())
		})
	}
}

// Of the events in the file, exactly 1,000 are invalid.
func TestDump_HasExactly1000InvalidEvents(t *testing.T) {
	lines := bufio.NewScanner(bytes.NewReader(dumpFile))
	events, invalid := 0, 0
	for lines.Scan() {
		var r record
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		require.Contains(t, topics, r.Topic)
		events++
		var e Employee
		if json.Unmarshal([]byte(r.Payload), &e) != nil || e.validate() != nil {
			invalid++
		}
	}
	require.NoError(t, lines.Err())
	require.Equal(t, 3000, events)
	require.Equal(t, 1000, invalid)
}
